//! Whole lives of pods, as they are shown.

use super::*;

#[test]
fn a_start_is_shown_step_by_step_with_the_slowest_marked() {
    let report = started().report(None, at(9000));
    let start = stage(&report, "start");
    let expected = [
        "seen 0.5",
        "admitted 0.01",
        "cgroup 0.01",
        "volumes 0.08",
        "sandbox 0.4",
        "pull app 1.8",
        "created app 0.1",
        "started app 0.1",
        "ready app 0.1",
        "reported 3.99",
    ];
    assert_eq!(steps(start), expected);
    // The last one goes on without anybody waiting for it.
    let slowest: Vec<_> = start.steps.iter().filter(|s| s.slowest).map(|s| s.step.as_str()).collect();
    assert_eq!(slowest, ["reported"]);
    assert_eq!((start.began_at.as_str(), start.seconds), (wall(2000).to_string().as_str(), Some(3.1)));
    assert_eq!(start.ended_at, Some(wall(5100).to_string()));
}

#[test]
fn what_the_apiserver_has_rounded_down_is_not_taken_for_the_slowest() {
    let mut t = fresh();
    t.admitted(Ok(()), at(2600));
    let report = t.report(None, at(2600));
    let start = stage(&report, "start");
    assert_eq!(steps(start), ["seen 0.5", "admitted 0.1"]);
    assert!(start.steps[0].at_most && !start.steps[0].slowest, "{start:?}");
    assert!(start.steps[1].slowest);
}

#[test]
fn the_time_goes_to_places_and_what_is_left_to_the_agent() {
    let mut t = fresh();
    t.admitted(Ok(()), at(2500));
    step(&mut t, Step::Sandbox, None, Place::RuntimeAndNetwork, 2600, 3000);
    // Two at once: a place has no more time than went by.
    t.begin(Step::Ready, Some("a"), Place::Probe, at(3000));
    t.begin(Step::Ready, Some("b"), Place::Probe, at(3500));
    t.end(Step::Ready, Some("a"), Ending::Done, at(4000));
    t.status(&status(vec![running("b", true)], true), &spec(), at(4500));
    t.shown(&Pod::default(), at(4500));
    let report = t.report(None, at(4500));
    let places: Vec<_> =
        stage(&report, "start").places.iter().map(|p| (p.place.as_str(), p.seconds)).collect();
    let expected = [("probe", 1.5), ("apiserver", 0.5), ("runtime and network plugin", 0.4), ("agent", 0.1)];
    assert_eq!(places, expected);
}

#[test]
fn tries_that_failed_are_one_row_with_the_back_off_between_them() {
    let mut t = fresh();
    for (from, to) in [(3000, 3100), (13_100, 13_300)] {
        t.begin(Step::Pull, Some("app"), Place::Registry, at(from));
        t.end(Step::Pull, Some("app"), Ending::Failed, at(to));
        t.failed(Step::Pull, Place::Registry, Some("app"), "not found", at(to));
    }
    let report = t.report(None, at(20_000));
    let start = stage(&report, "start");
    let pull = start.steps.iter().find(|s| s.step == "pull").unwrap();
    assert_eq!((pull.failed_tries, pull.seconds, pull.result.as_str()), (2, Some(0.3), "failed"));
    let back_off = start.places.iter().find(|p| p.place == "back-off").unwrap();
    assert_eq!(back_off.seconds, 10.0);
    assert_eq!(start.ended_at, None, "it goes on");
    let failure = &report.failures[0];
    assert_eq!((failure.count, failure.cause.as_str(), failure.place.as_str()), (2, "not found", "registry"));
    assert_eq!(failure.first_at, wall(3100).to_string());
}

#[test]
fn only_the_latest_restart_is_kept_and_the_start_stays_as_it_was() {
    let mut t = started();
    let before = steps(stage(&t.report(None, at(6000)), "start"));
    for n in 0..50 {
        let from = 10_000 + n * 1000;
        step(&mut t, Step::PreStop, Some("app"), Place::Hook, from, from + 10);
        step(&mut t, Step::Stopped, Some("app"), Place::Container, from + 10, from + 20);
        step(&mut t, Step::Pull, Some("app"), Place::Runtime, from + 20, from + 30);
        t.begin(Step::Created, Some("app"), Place::Runtime, at(from + 30));
        t.end(Step::Created, Some("app"), Ending::Failed, at(from + 40));
        step(&mut t, Step::Pull, Some("app"), Place::Runtime, from + 50, from + 60);
        step(&mut t, Step::Created, Some("app"), Place::Runtime, from + 60, from + 70);
        step(&mut t, Step::Started, Some("app"), Place::Runtime, from + 70, from + 80);
        t.begin(Step::Ready, Some("app"), Place::Probe, at(from + 80));
        t.status(&status(vec![running("app", true)], true), &spec(), at(from + 100));
        // What a volume shows is renewed beside it, in a moment or not.
        step(&mut t, Step::Cgroup, None, Place::Node, from + 190, from + 200);
        step(&mut t, Step::Volumes, None, Place::Volume, from + 200, from + 300);
    }
    let report = t.report(None, at(6000));
    assert_eq!(steps(stage(&report, "start")), before);
    let since = stage(&report, "since");
    let expected = [
        "preStop app 0.01",
        "stopped app 0.01",
        "pull app 0.02",
        "created app 0.02",
        "started app 0.01",
        "ready app 0.02",
        "volumes 0.1",
    ];
    assert_eq!(steps(since), expected);
    assert_eq!(since.began_at, wall(59_000).to_string());
}

#[test]
fn the_run_of_an_init_container_is_measured_by_the_runtime() {
    let mut t = fresh();
    step(&mut t, Step::Started, Some("first"), Place::Runtime, 3000, 3100);
    t.begin(Step::Run, Some("first"), Place::Container, at(3100));
    t.observed(&observed(vec![exited("first", 1, 3090, 3600)]), at(4000));
    let report = t.report(None, at(4000));
    let run = stage(&report, "start").steps.iter().find(|s| s.step == "run").unwrap().clone();
    assert_eq!((run.seconds, run.result.as_str()), (Some(0.5), "failed"));
    t.begin(Step::Run, Some("first"), Place::Container, at(14_000));
    // Its clock is coarse: an end before the beginning is no time, and not a huge one.
    t.observed(&observed(vec![exited("first", 0, 13_000, 13_000)]), at(15_000));
    let report = t.report(None, at(15_000));
    let run = stage(&report, "start").steps.iter().find(|s| s.step == "run").unwrap();
    assert_eq!((run.seconds, run.result.as_str(), run.failed_tries), (Some(0.5), "done", 1));
}

#[test]
fn a_stop_is_shown_from_the_request_and_what_went_on_is_given_up() {
    let mut t = started();
    t.begin(Step::Pull, Some("other"), Place::Registry, at(8000));
    let mut pod = Pod::default();
    pod.metadata.deletion_timestamp = Some(Time(wall(39_000)));
    pod.metadata.deletion_grace_period_seconds = Some(30);
    t.ends(&TerminationReason::Deleted, asked_at(&pod), at(9200));
    t.end(Step::Pull, Some("other"), Ending::Done, at(9300));
    step(&mut t, Step::PreStop, Some("app"), Place::Hook, 9200, 9300);
    step(&mut t, Step::Stopped, Some("app"), Place::Container, 9300, 9900);
    step(&mut t, Step::SandboxStopped, None, Place::RuntimeAndNetwork, 9900, 10_000);
    step(&mut t, Step::VolumesUnmounted, None, Place::Volume, 10_000, 10_010);
    step(&mut t, Step::ObjectRemoved, None, Place::Apiserver, 10_010, 10_030);
    // The watch's word that the object is gone ends nothing anew.
    t.ends(&TerminationReason::Orphaned, None, at(10_040));
    let report = t.report(None, at(10_100));
    assert_eq!(report.summary, "ending: it was deleted");
    let stop = stage(&report, "stop");
    let expected = [
        "asked 0.2",
        "preStop app 0.1",
        "stopped app 0.6",
        "sandboxStopped 0.1",
        "volumesUnmounted 0.01",
        "objectRemoved 0.02",
    ];
    assert_eq!(steps(stop), expected);
    assert_eq!(stop.seconds, Some(1.03));
    assert!(stop.steps[0].at_most && stop.steps[2].slowest);
    let pull = stage(&report, "start").steps.iter().find(|s| s.container.as_deref() == Some("other"));
    assert_eq!(pull.unwrap().result, "givenUp");

    let gone = t.gone(at(11_000)).report(None, at(71_000));
    assert_eq!((gone.phase.as_str(), gone.gone_at.clone()), ("Gone", Some(wall(11_000).to_string())));
    assert_eq!(gone.summary, "gone for 60.0 s: it was deleted");
    assert!(gone.now.is_empty());
    assert_eq!(steps(stage(&gone, "stop")), expected);
}

#[test]
fn a_pod_that_had_ended_and_is_deleted_later_ends_anew() {
    let mut t = started();
    t.ends(&TerminationReason::Completed, None, at(9000));
    step(&mut t, Step::SandboxStopped, None, Place::Runtime, 9000, 9100);
    t.ends(&TerminationReason::Completed, None, at(9100));
    assert_eq!(steps(stage(&t.report(None, at(9200)), "stop")), ["asked 0", "sandboxStopped 0.1"]);
    t.ends(&TerminationReason::Deleted, None, at(3_609_000));
    step(&mut t, Step::Removed, None, Place::Runtime, 3_609_000, 3_609_100);
    let report = t.report(None, at(3_609_100));
    assert_eq!(steps(stage(&report, "stop")), ["asked 0", "removed 0.1"]);
    assert_eq!(stage(&report, "stop").seconds, Some(0.1));
}

#[test]
fn of_a_pod_that_was_found_running_only_times_are_known() {
    let desired = desired(&["app"]);
    let mut t = PodTimeline::new(Beginning::desired(&desired, true, wall(0)), at(5000));
    t.found(&observed(vec![exited("app", 0, 1200, 1500)]), at(5000));
    assert_eq!(t.status(&status(vec![running("app", true)], true), &spec(), at(5010)), None);
    assert_eq!(t.worker_began(at(5010)), None);
    let report = t.report(None, at(6000));
    let start = stage(&report, "start");
    assert_eq!(steps(start), ["sandbox -", "created app -", "started app -"]);
    assert_eq!((start.seconds, start.places.len()), (None, 0));
    assert_eq!(start.steps[0].began_at, wall(1000).to_string());
    assert!(start.steps.iter().all(|s| s.place.is_none() && !s.slowest));
    step(&mut t, Step::Started, Some("app"), Place::Runtime, 7000, 7100);
    assert_eq!(steps(stage(&t.report(None, at(8000)), "since")), ["started app 0.1"]);
}

#[test]
fn a_pod_that_was_bound_before_this_agent_began_waited_for_an_agent() {
    let desired = desired(&["app"]);
    let close = PodTimeline::new(Beginning::desired(&desired, false, wall(2400)), at(2500));
    let report = close.report(None, at(2500));
    assert_eq!(
        stage(&report, "start").steps[0].place.as_deref(),
        Some("apiserver"),
        "it may have been later"
    );
    let t = PodTimeline::new(Beginning::desired(&desired, false, wall(3000)), at(3100));
    let report = t.report(None, at(3100));
    let seen = &stage(&report, "start").steps[0];
    assert_eq!(seen.place.as_deref(), Some("agent"));
    assert_eq!(seen.note.as_deref(), Some("this agent was not running yet"));
}

#[test]
fn the_scheduling_time_is_the_binding_and_else_the_creation() {
    let mut pod = desired(&["app"]);
    assert_eq!(bound_at(&pod), Some(wall(2000)));
    let scheduled =
        PodCondition { last_transition_time: Some(Time(wall(2300))), ..condition("PodScheduled", "True") };
    let mut with = Pod::clone(&pod.pod);
    with.status = Some(PodStatus { conditions: Some(vec![scheduled]), ..Default::default() });
    pod.pod = Arc::new(with.clone());
    assert_eq!(bound_at(&pod), Some(wall(2300)));
    with.status.as_mut().unwrap().start_time = Some(Time(wall(9000)));
    pod.pod = Arc::new(with);
    assert_eq!(bound_at(&pod), Some(wall(2000)), "written by an agent before this one");
    pod.source = PodSource::Static;
    assert_eq!(bound_at(&pod), None);
}

#[test]
fn a_clock_that_is_set_changes_no_duration() {
    let mut t = fresh();
    let hour_later = Moment::new(wall(3_603_000), Duration::from_millis(3000));
    t.begin(Step::Sandbox, None, Place::Runtime, at(2900));
    t.end(Step::Sandbox, None, Ending::Done, hour_later);
    let report = t.report(None, hour_later);
    let sandbox = stage(&report, "start").steps.iter().find(|s| s.step == "sandbox").unwrap();
    assert_eq!(sandbox.seconds, Some(0.1));
    assert_eq!(sandbox.ended_at, Some(wall(3_603_000).to_string()));
}
