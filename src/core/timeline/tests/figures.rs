//! The figures that metrics are made of, each of them once.

use k8s_openapi::api::core::v1::{HostPathVolumeSource, PodReadinessGate, SecretVolumeSource, Volume};

use super::*;

fn shown(desired: &DesiredPod, status: PodStatus) -> Pod {
    Pod { status: Some(status), ..Pod::clone(&desired.pod) }
}

#[test]
fn a_start_is_measured_from_the_first_sight_and_once() {
    let mut t = fresh();
    assert_eq!(t.worker_began(at(2600)), Some(Duration::from_millis(100)));
    assert_eq!(t.worker_began(at(2700)), None, "a worker that was started again");
    let pending = PodStatus { phase: Some("Pending".into()), ..Default::default() };
    assert_eq!(t.status(&pending, &spec(), at(3000)), None);
    let up = status(vec![running("app", false)], false);
    assert_eq!(t.status(&up, &spec(), at(3500)), Some(Duration::from_secs(1)));
    assert_eq!(t.status(&up, &spec(), at(3600)), None);
}

#[test]
fn the_sli_leaves_out_pulls_and_init_containers_and_counts_when_the_apiserver_shows_it() {
    let desired = desired(&["app"]);
    let mut t = seen(&desired);
    step(&mut t, Step::Started, Some("init"), Place::Runtime, 2600, 2700);
    t.begin(Step::Run, Some("init"), Place::Container, at(2700));
    t.observed(&observed(vec![exited("init", 0, 2700, 3200)]), at(3250));
    for (container, from, to) in [("app", 4000, 6000), ("side", 5000, 7000)] {
        t.begin(Step::Pull, Some(container), Place::Registry, at(from));
        t.note(Step::Pull, Some(container), Note::Pulled { bytes: 1, waiting: Duration::ZERO });
        t.end(Step::Pull, Some(container), Ending::Done, at(to));
    }
    // What was there already is looked up, not pulled.
    t.begin(Step::Pull, Some("third"), Place::Runtime, at(7000));
    t.note(Step::Pull, Some("third"), Note::Present);
    t.end(Step::Pull, Some("third"), Ending::Done, at(7100));
    let up = status(vec![running("app", true)], true);
    assert_eq!(t.shown(&shown(&desired, up.clone()), at(7500)), None, "nothing was reported yet");
    t.status(&up, &spec(), at(7500));
    assert_eq!(t.shown(&shown(&desired, PodStatus::default()), at(7600)), None, "an older word of it");
    let latency = t.shown(&shown(&desired, up.clone()), at(8000)).unwrap();
    let millis = Duration::from_millis;
    // 6 s since its creation, 3 s of pulls that overlap, 0.5 s of the init container.
    assert_eq!(latency, StartLatency { total: millis(6000), sli: Some(millis(2500)), network: true });
    assert_eq!(t.shown(&shown(&desired, up), at(9000)), None, "once");
    let report = t.report(None, at(9000));
    let reported = stage(&report, "start").steps.iter().find(|s| s.step == "reported").unwrap();
    assert_eq!(reported.seconds, Some(0.5));
}

#[test]
fn a_volume_that_is_being_given_to_its_group_shows_how_far_it_is() {
    let mut t = seen(&desired(&["app"]));
    t.begin(Step::Volumes, None, Place::Volume, at(3000));
    t.note(Step::Volumes, None, Note::Owned { entries: 1200 });
    t.note(Step::Volumes, None, Note::Owned { entries: 120_000 });
    let report = t.report(None, at(40_000));
    let row = stage(&report, "start").steps.iter().find(|s| s.step == "volumes").unwrap();
    assert_eq!(
        (row.result.as_str(), row.note.as_deref()),
        ("running", Some("120000 files given to the fsGroup"))
    );
    assert_eq!(row.seconds, Some(37.0));
}

#[test]
fn pods_that_say_nothing_about_the_node_are_not_counted() {
    let up = || status(vec![running("app", true)], true);
    let latency = |change: &dyn Fn(&mut Pod), first: PodStatus| {
        let mut pod = desired(&["app"]);
        let mut with = Pod::clone(&pod.pod);
        change(&mut with);
        pod.pod = Arc::new(with);
        let mut t = seen(&pod);
        t.shown(&shown(&pod, first), at(2500));
        t.status(&up(), &spec(), at(3000));
        t.shown(&shown(&pod, up()), at(4000))
    };
    let volume = |pod: &mut Pod, volume: Volume| pod.spec.as_mut().unwrap().volumes = Some(vec![volume]);
    let host = |pod: &mut Pod| {
        let path = HostPathVolumeSource { path: "/".into(), type_: None };
        volume(pod, Volume { name: "v".into(), host_path: Some(path), ..Default::default() });
    };
    let secret = |pod: &mut Pod| {
        let secret = SecretVolumeSource::default();
        volume(pod, Volume { name: "v".into(), secret: Some(secret), ..Default::default() });
    };
    let unscheduled =
        PodStatus { conditions: Some(vec![condition("PodScheduled", "False")]), ..Default::default() };
    let begun = |pod: &mut Pod| {
        pod.status = Some(PodStatus { start_time: Some(Time(wall(0))), ..Default::default() });
    };
    let sli = |l: Option<StartLatency>| l.map(|l| l.sli.is_some());
    assert_eq!(sli(latency(&|_| {}, PodStatus::default())), Some(true));
    assert_eq!(sli(latency(&host, PodStatus::default())), Some(false), "its volume keeps data");
    assert_eq!(sli(latency(&secret, PodStatus::default())), Some(true));
    assert_eq!(sli(latency(&|_| {}, unscheduled)), None, "it waited for room in the cluster");
    assert_eq!(sli(latency(&begun, PodStatus::default())), None, "an agent before has begun it");
}

#[test]
fn a_gate_that_somebody_else_opens_has_its_own_time() {
    let gated = PodSpec {
        readiness_gates: Some(vec![PodReadinessGate { condition_type: "x".into() }]),
        ..Default::default()
    };
    let mut t = fresh();
    step(&mut t, Step::Started, Some("app"), Place::Runtime, 3000, 3100);
    t.begin(Step::Ready, Some("app"), Place::Agent, at(3100));
    t.status(&status(vec![running("app", true)], false), &gated, at(3200));
    t.status(&status(vec![running("app", true)], true), &gated, at(5200));
    let report = t.report(None, at(6000));
    let gate = stage(&report, "start").steps.iter().find(|s| s.place.as_deref() == Some("readiness gate"));
    assert_eq!(gate.unwrap().seconds, Some(2.0));
}
