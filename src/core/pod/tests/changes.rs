use super::*;
use crate::image::of_volume;
use crate::plan::{Kill, Plan};

fn order(change: impl FnOnce(&mut Pod)) -> Order {
    let mut desired = desired();
    change(Arc::make_mut(&mut desired.pod));
    Order { desired: Some(desired), directive: Directive::default(), resize: ResizeOrder::default() }
}

#[test]
fn volumes_are_written_again_when_the_pods_own_labels_change() {
    let label = |p: &mut Pod| p.metadata.labels = Some([("k".to_owned(), "v".to_owned())].into());
    let cases: [(&str, Order, VolumesState); 4] = [
        ("nothing changed", order(|_| {}), VolumesState::Ready),
        ("a label changed", order(label), VolumesState::Pending),
        ("the status changed", order(|p| p.status = Some(Default::default())), VolumesState::Ready),
        ("the pod has vanished", Order::vanished(), VolumesState::Ready),
    ];
    for (name, order, expected) in cases {
        let mut state = state();
        let _ = state.apply(mounted(None), at(0));
        state.take_order(&order);
        state.refresh_volumes(at(0));
        assert_eq!(state.volumes.state, expected, "{name}");
        assert!(state.desired.is_some(), "{name}: what was known is kept");
    }
}

#[test]
fn what_was_granted_is_kept_when_the_pod_is_to_end() {
    let mut state = state();
    let grant =
        Grant { cdi_devices: vec!["vendor.com/gpu=0".into()], groups: vec![7, 5], ..Grant::default() };
    let admitted = Admitted { grants: [("a".to_owned(), grant.clone()), ("b".to_owned(), grant)].into() };
    state.take_order(&Order {
        desired: Some(desired()),
        directive: Directive::Run(admitted.clone()),
        resize: ResizeOrder::default(),
    });
    let eviction = Eviction { reason: "r".into(), message: "m".into(), grace: Duration::ZERO };
    state.take_order(&Order {
        desired: Some(desired()),
        directive: Directive::Evict(eviction),
        resize: ResizeOrder::default(),
    });
    assert_eq!(state.admitted, admitted);
    assert_eq!((state.admitted.grant("a").groups, state.admitted.groups()), (vec![7, 5], vec![5, 7]));
    assert_eq!(state.admitted.grant("other"), Grant::default());
}

#[test]
fn a_dead_sandbox_is_to_blame_for_what_could_not_start_in_it() {
    let cases = [
        ("CreateContainerError", SandboxState::NotReady, false),
        ("RunContainerError", SandboxState::NotReady, false),
        ("CreateContainerError", SandboxState::Ready, true),
        ("ErrImagePull", SandboxState::NotReady, true),
        ("CreateContainerConfigError", SandboxState::NotReady, true),
    ];
    for (reason, sandbox, waits) in cases {
        let mut state = state();
        let _ = state.apply(not_started(reason, StartRetry::Later), at(0));
        state.observed(&observed(sandbox, &[]));
        assert_eq!(state.waiting("a").is_some(), waits, "{reason} {sandbox:?}");
    }
}

#[test]
fn a_changed_object_lets_its_readers_try_at_once() {
    for (reason, waits) in [("CreateContainerConfigError", false), ("ErrImagePull", true)] {
        let mut state = state();
        let _ = state.apply(not_mounted(), at(0));
        let _ = state.apply(not_started(reason, StartRetry::Later), at(0));
        state.object_changed(Change::Secret("s"));
        assert_eq!(state.waiting("a").is_some(), waits, "{reason}");
        assert_eq!(state.held_until(at(0)), None);
        assert!(state.plan_volumes(at(0)).prepares("v"));
    }
}

#[test]
fn an_image_that_failed_is_in_back_off_from_the_next_round_on() {
    for reason in ["ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed"] {
        let mut state = state();
        let _ = state.apply(not_started(reason, StartRetry::Pull), at(0));
        let events = state.soften_image_failures();
        let said: Vec<_> = events.iter().map(|e| (e.reason, e.message.as_str())).collect();
        let expected =
            [("BackOff", "Back-off pulling image \"image\""), ("Failed", "Error: ImagePullBackOff")];
        assert_eq!(said, expected);
        let waiting = state.waiting("a").unwrap();
        assert_eq!(waiting.reason, "ImagePullBackOff");
        assert_eq!(waiting.message, format!("Back-off pulling image \"image\": {reason}: no"));
        assert_eq!(waiting.retry_at, Some(at(10_000)));
        assert!(state.soften_image_failures().is_empty(), "once is enough");
    }
}

#[test]
fn the_image_of_a_volume_is_the_one_that_is_in_back_off() {
    let failure = StartFailure { reason: "ErrImagePull", message: "no".into(), retry: StartRetry::Pull };
    let failure = of_volume("data", "r.io/tools:1", failure);
    let mut state = state();
    let _ = state.apply(ActionOutcome::ContainerStarted { name: "a".into(), result: Err(failure) }, at(0));
    let events = state.soften_image_failures();
    assert_eq!(events[0].message, "Back-off pulling image \"r.io/tools:1\"");
    let waiting = &state.waiting("a").unwrap().message;
    let expected =
        "Back-off pulling image \"r.io/tools:1\": ErrImagePull: image volume \"data\" (r.io/tools:1): no";
    assert_eq!(waiting, expected);
}

#[test]
fn an_image_that_nobody_asked_a_registry_for_is_in_no_back_off() {
    for reason in ["ErrImageNeverPull", "InvalidImageName", "ImageInspectError"] {
        let mut state = state();
        for _ in 0..5 {
            let _ = state.apply(not_started(reason, StartRetry::Later), at(0));
            assert!(state.soften_image_failures().is_empty(), "{reason}");
            let waiting = state.waiting("a").unwrap();
            assert_eq!((waiting.reason.as_str(), waiting.retry_at), (reason, Some(at(10_000))));
        }
    }
}

#[test]
fn what_was_corrected_does_not_wait_for_what_was_wrong() {
    let image = |p: &mut Pod| p.spec.as_mut().unwrap().containers[0].image = Some("corrected".into());
    let resources = |p: &mut Pod| p.spec.as_mut().unwrap().containers[0].resources = Some(Default::default());
    let label = |p: &mut Pod| p.metadata.labels = Some([("k".to_owned(), "v".to_owned())].into());
    // Whether the container still waits, and how long a crash and a failed pull make it wait by now.
    let cases = [
        ("another image", order(image), "ErrImagePull", (false, 0, 0)),
        ("another image after a crash", order(image), "RunContainerError", (false, 0, 0)),
        ("other resources", order(resources), "ErrImagePull", (true, 0, 10)),
        ("other resources after a crash", order(resources), "RunContainerError", (false, 0, 0)),
        ("a label", order(label), "ErrImagePull", (true, 10, 10)),
        ("nothing", order(|_| {}), "ErrImagePull", (true, 10, 10)),
    ];
    for (name, order, reason, expected) in cases {
        let mut state = state();
        let _ = state.apply(ActionOutcome::RestartBegun { name: "a".into(), was_up: Duration::ZERO }, at(0));
        let retry = if reason == "ErrImagePull" { StartRetry::Pull } else { StartRetry::Later };
        let _ = state.apply(not_started(reason, retry), at(0));
        state.soften_image_failures();
        state.take_order(&order);
        let memory = &state.containers["a"];
        let delays = (memory.crash_backoff.delay().as_secs(), memory.image_backoff.delay().as_secs());
        assert_eq!((memory.waiting.is_some(), delays.0, delays.1), expected, "{name}");
    }
}

#[test]
fn a_back_off_is_reported_once_for_each_instance() {
    let mut state = state();
    let mut plan = Plan::default();
    let waiting = Waiting { reason: "CrashLoopBackOff".into(), message: String::new(), retry_at: None };
    plan.waiting.insert("a".into(), waiting);
    let one = observed(SandboxState::Ready, &[("a", 0, ContainerState::Exited)]);
    let message = state.report_backoff(&plan, &one).remove(0).message;
    assert_eq!(message, "Back-off restarting failed container a in pod p_ns(u)");
    assert!(state.report_backoff(&plan, &one).is_empty());
    let next = observed(SandboxState::Ready, &[("a", 1, ContainerState::Exited)]);
    assert_eq!(state.report_backoff(&plan, &next).len(), 1);
}

#[test]
fn a_restarted_agent_resumes_the_back_off_of_the_newest_instance() {
    use ContainerState::{Exited, Running};
    type Case = (&'static str, &'static [(&'static str, u32, ContainerState)], u64);
    let cases: [Case; 3] = [
        ("one that crashed thrice", &[("a", 3, Exited)], 40),
        ("an older one beside it", &[("a", 3, Exited), ("a", 1, Exited)], 40),
        ("one that runs again", &[("a", 4, Running), ("a", 3, Exited)], 0),
    ];
    for (name, containers, seconds) in cases {
        let found = observed(SandboxState::Ready, containers);
        let state = PodState::new(Some(desired()), &found, CrashPolicy::default());
        let memory = state.containers.get("a").cloned().unwrap_or_default();
        assert_eq!(memory.crash_backoff.delay().as_secs(), seconds, "{name}");
    }
}

#[test]
fn a_stop_begins_once() {
    let mut state = state();
    let kill = Kill {
        id: id("a0"),
        name: "a".into(),
        grace_seconds: 30,
        message: "Stopping".into(),
        restart: None,
        after: vec![],
    };
    assert_eq!(state.begin_stop(&kill).unwrap().reason, "Killing");
    assert!(state.begin_stop(&kill).is_none(), "its preStop hook has run");
    state.observed(&observed(SandboxState::Ready, &[("a", 0, ContainerState::Running)]));
    assert!(state.begin_stop(&kill).is_none());
    state.observed(&observed(SandboxState::Ready, &[]));
    assert!(state.instances.is_empty(), "an instance that is gone is forgotten");
}

#[test]
fn termination_messages_are_read_once() {
    let mut state = state();
    let dead = observed(SandboxState::Ready, &[("a", 0, ContainerState::Exited)]);
    assert_eq!(state.unread_messages(&dead).count(), 1);
    state.message_read(id("a0"), String::new());
    assert_eq!(state.unread_messages(&dead).count(), 0);
}

#[test]
fn a_container_that_cannot_be_removed_takes_its_sandbox_along_when_nothing_runs_there() {
    use ContainerState::{Created, Exited, Running};
    let late = at(31_000);
    type Case = (&'static str, u32, Timestamp, ContainerState, bool, bool);
    let cases: [Case; 6] = [
        ("stuck for long", 4, late, Created, false, true),
        ("it may still be given up", 4, at(29_000), Created, false, false),
        ("it was tried too seldom", 3, late, Created, false, false),
        ("it has run", 4, late, Exited, false, false),
        ("something runs beside it", 4, late, Created, true, false),
        ("nothing runs at all", 9, late, Created, false, true),
    ];
    for (name, failures, now, what, beside, expected) in cases {
        let mut state = state();
        for _ in 0..failures {
            let _ = state.apply(ActionOutcome::Step(Step::RemoveContainer, Err("no".into())), at(0));
        }
        let other = if beside { Running } else { Exited };
        let pod = observed(SandboxState::Ready, &[("a", 0, what), ("b", 0, other)]);
        assert_eq!(state.only_its_sandbox_can_end(&pod.containers[0], &pod, now), expected, "{name}");
        if beside {
            state.lifecycle = Lifecycle::Terminated { reason: TerminationReason::Deleted };
            assert!(
                state.only_its_sandbox_can_end(&pod.containers[0], &pod, now),
                "{name}, but it goes anyway"
            );
        }
    }
}

#[test]
fn a_new_stage_of_life_is_not_held_back_by_what_failed_before() {
    let mut state = state();
    let _ = state.apply(ActionOutcome::Step(Step::EnsureCgroup, Err("no".into())), at(0));
    state.enter(Lifecycle::Syncing);
    assert!(state.held_until(at(0)).is_some());
    let deadline = at(0) + SignedDuration::from_secs(5);
    state.enter(Lifecycle::Terminating { reason: TerminationReason::Deleted, deadline });
    assert!(state.held_until(at(0)).is_none());
}
