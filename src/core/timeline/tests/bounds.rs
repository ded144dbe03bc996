//! A record has a bound, whatever the pod does.

use super::super::failure::{KEPT, KEPT_OF_GONE, LONGEST};
use super::super::record::{MOST_CONTAINERS, MOST_ROWS, MOST_WAITS};
use super::*;
use crate::pod::{ActionOutcome, SandboxFailure, SandboxFailureCause, StartFailure, Step as Action, Stopped};
use crate::volumes::VolumeOutcome;

#[test]
fn rows_and_containers_have_a_bound_and_what_is_more_is_counted() {
    let mut t = fresh();
    for n in 0..1000 {
        let name = format!("c{n}");
        for s in [Step::Pull, Step::Created, Step::Started] {
            step(&mut t, s, Some(&name), Place::Runtime, 3000, 3001);
        }
        t.failed(Step::Run, Place::Container, Some(&name), "ended", at(3002));
    }
    assert!(t.rows.len() <= MOST_ROWS && t.containers.len() <= MOST_CONTAINERS);
    assert!(t.report(None, at(4000)).left_out > 2000, "{}", t.report(None, at(4000)).left_out);
    // What the pod itself goes through is told all the same, and restarts of what is kept too.
    step(&mut t, Step::Started, Some("c0"), Place::Runtime, 5000, 5001);
    t.rests((0..100).map(|_| Wait::pod("x", "y")).collect());
    assert_eq!(t.report(None, at(6000)).now.len(), MOST_WAITS);
}

#[test]
fn a_life_of_repetitions_takes_no_more_room_than_its_first_round() {
    let mut t = started();
    let mut sizes = vec![];
    for n in 0..500 {
        let from = 10_000 + n * 100;
        step(&mut t, Step::Pull, Some("app"), Place::Registry, from, from + 1);
        t.begin(Step::Created, Some("app"), Place::Runtime, at(from + 2));
        t.end(Step::Created, Some("app"), Ending::Failed, at(from + 3));
        t.failed(
            Step::Created,
            Place::Runtime,
            Some("app"),
            &format!("sandbox {n:064x} is gone"),
            at(from + 3),
        );
        step(&mut t, Step::Created, Some("app"), Place::Runtime, from + 4, from + 5);
        step(&mut t, Step::Started, Some("app"), Place::Runtime, from + 5, from + 6);
        t.begin(Step::Ready, Some("app"), Place::Probe, at(from + 6));
        t.failed(Step::Probe, Place::Probe, Some("app"), "Readiness probe failed", at(from + 7));
        sizes.push((t.rows.len(), t.failures.latest().count()));
    }
    assert!(sizes.iter().all(|s| *s == sizes[0]), "{sizes:?}");
    let report = t.report(None, at(70_000));
    assert_eq!(report.failures.iter().map(|f| f.count).collect::<Vec<_>>(), [500, 500]);
    assert!(report.failures[1].cause.contains(&format!("{:064x}", 499)), "the latest id is shown");
}

/// All that a pod can make an agent keep, and all that is kept of those that are gone.
#[test]
fn the_largest_record_is_small() {
    let rows = MOST_ROWS * size_of::<super::super::row::Row>();
    let names = MOST_CONTAINERS * (253 + size_of::<Box<str>>());
    let failures = |kept: usize| kept * (LONGEST + size_of::<super::super::failure::Failure>());
    let whole = |kept| size_of::<PodTimeline>() + rows + names + failures(kept);
    assert!(whole(KEPT) < 48 * 1024, "{} bytes", whole(KEPT));
    assert!(REMEMBERED * whole(KEPT_OF_GONE) < 5 * 1024 * 1024);
    // What a pod of two containers comes to.
    let usual = size_of::<PodTimeline>() + 16 * size_of::<super::super::row::Row>();
    assert!(usual < 3 * 1024, "{usual} bytes");
}

#[test]
fn failures_are_the_last_few_and_a_cause_has_a_length() {
    let mut t = fresh();
    for word in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"] {
        t.failed(Step::Sandbox, Place::Runtime, None, word, at(3000));
    }
    t.failed(Step::Sandbox, Place::Runtime, None, "four", at(4000));
    let causes = |t: &PodTimeline| -> Vec<String> {
        t.report(None, at(5000)).failures.into_iter().map(|f| f.cause).collect()
    };
    assert_eq!(causes(&t).len(), KEPT);
    assert_eq!(causes(&t)[..3], ["four", "ten", "nine"], "the latest first, the same once");
    t.failed(Step::Sandbox, Place::Runtime, None, &"ä".repeat(5000), at(4001));
    let longest = &causes(&t)[0];
    assert!(longest.len() <= LONGEST + 3 && longest.ends_with("ä…"), "{longest}");
    assert_eq!(causes(&t.gone(at(5000))).len(), KEPT_OF_GONE);
}

#[test]
fn the_last_hundred_that_are_gone_are_remembered() {
    let mut gone = Remembered::default();
    for n in 0..250 {
        let desired = DesiredPod { uid: uid(&format!("u{n}")), ..desired(&["app"]) };
        gone.add(seen(&desired).gone(at(3000 + n)));
    }
    let uids: Vec<_> = gone.latest().map(|t| t.uid().to_string()).collect();
    assert_eq!((uids.len(), uids[0].as_str(), uids[99].as_str()), (REMEMBERED, "u249", "u150"));
}

#[test]
fn a_pod_that_comes_up_once_more_to_be_taken_down_is_remembered_as_it_was() {
    let mut gone = Remembered::default();
    let mut whole = started();
    whole.ends(&TerminationReason::Deleted, None, at(6000));
    gone.add(whole.gone(at(7000)));
    let mut pod = Pod::clone(&desired(&["app"]).pod);
    pod.status = Some(PodStatus { start_time: Some(Time(wall(2500))), ..Default::default() });
    let echo = DesiredPod { pod: Arc::new(pod), ..desired(&["app"]) };
    let mut echo = seen(&echo);
    echo.found(&observed(vec![exited("app", 0, 3000, 4000)]), at(8000));
    echo.ends(&TerminationReason::Deleted, None, at(8000));
    step(&mut echo, Step::Removed, None, Place::Runtime, 8000, 8001);
    gone.add(echo.clone().gone(at(8100)));
    let remembered: Vec<_> = gone.latest().map(|t| t.report(None, at(9000)).gone_at.unwrap()).collect();
    assert_eq!(remembered, [wall(7000).to_string()]);
    // One that was not known before is remembered, however little there is to say of it.
    let mut others = Remembered::default();
    others.add(echo.gone(at(8100)));
    assert_eq!(others.latest().count(), 1);
}

#[test]
fn every_outcome_names_the_step_and_the_place_of_its_failure() {
    let start = |reason: &'static str, message: &str| ActionOutcome::ContainerStarted {
        name: "app".into(),
        result: Err(StartFailure { reason, ..StartFailure::create(message) }),
    };
    let sandbox = |message: &str, cause| {
        ActionOutcome::SandboxCreated(Err(SandboxFailure { message: message.into(), cause }))
    };
    let action = |action, message: &str| ActionOutcome::Step(action, Err(message.to_owned()));
    let cni = "failed to setup network for sandbox \"x\": plugin type=\"bridge\" failed (add): no addresses";
    let other = SandboxFailureCause::Other;
    for (case, outcome, expected) in [
        ("a plugin", sandbox(cni, other), "sandbox: network plugin"),
        ("the runtime", sandbox("no such image: pause", other), "sandbox: runtime"),
        ("no network", sandbox("cni", SandboxFailureCause::NetworkNotReady), "sandbox: network plugin"),
        ("a pull", start("ErrImagePull", "not found"), "pull app: registry"),
        ("a full disk", start("ErrImagePull", "write: no space left on device"), "pull app: runtime"),
        ("never pulled", start("ErrImageNeverPull", "not here"), "pull app: spec"),
        ("no secret", start("CreateContainerConfigError", "secret"), "config app: spec"),
        ("not created", start("CreateContainerError", "no"), "created app: runtime"),
        ("not started", start("RunContainerError", "no"), "started app: runtime"),
        ("a cgroup", action(Action::EnsureCgroup, "no"), "cgroup: node"),
        ("an object", action(Action::Finish, "no"), "objectRemoved: apiserver"),
        (
            "its network",
            action(Action::StopSandbox, "failed to destroy network for sandbox"),
            "sandboxStopped: network plugin",
        ),
        ("a mount", action(Action::UnmountVolumes, "busy"), "volumesUnmounted: volume"),
        (
            "a volume",
            ActionOutcome::VolumesMounted(vec![VolumeOutcome::Failed {
                volume: "v".into(),
                message: "no".into(),
            }]),
            "volumes: volume",
        ),
        (
            "a stop",
            ActionOutcome::ContainersStopped(vec![Stopped {
                name: "app".into(),
                pre_stop: Ok(()),
                stop: Err("no".into()),
            }]),
            "stopped app: runtime",
        ),
        ("nothing", ActionOutcome::SandboxCreated(Ok(())), ""),
    ] {
        let mut t = fresh();
        t.outcome(&outcome, at(3000));
        let failures = t.report(None, at(3000)).failures;
        let said: Vec<String> = failures
            .iter()
            .map(|f| {
                let container = f.container.as_deref().map_or(String::new(), |c| format!(" {c}"));
                format!("{}{container}: {}", f.step, f.place)
            })
            .collect();
        assert_eq!(said.join(", "), expected, "{case}");
    }
}

#[test]
fn what_a_hook_said_is_not_kept() {
    let mut t = fresh();
    let stopped = Stopped { name: "app".into(), pre_stop: Err("password=hunter2".into()), stop: Ok(()) };
    t.outcome(&ActionOutcome::ContainersStopped(vec![stopped]), at(3000));
    let id = ContainerId::try_from("c").unwrap();
    let result = Some(Err("password=hunter2".to_owned()));
    t.outcome(&ActionOutcome::PostStartEnded { id, name: "app".into(), result }, at(3000));
    let report = t.report(None, at(3000));
    assert_eq!(report.failures.len(), 2);
    assert!(!format!("{report:?}").contains("hunter2"));
}
