//! The restart of all containers, which a rule of one of them asks for.

use super::*;

/// b asks for it by exiting with 42; a has a sidecar, i2 runs to its end.
fn pod_with_rule() -> World {
    let mut w = converged();
    w.spec().restart_policy = Some("Never".into());
    w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
    w.spec().containers[1] = restarts_all(container("b"), 42);
    w.forget("i1");
    w.running("i1");
    w
}

fn asked() -> World {
    let mut w = pod_with_rule();
    w.forget("b");
    w.exited("b", 0, 42);
    w
}

fn ended() -> World {
    let mut w = asked();
    w.end_as_planned(143);
    w
}

#[test]
fn one_exit_restarts_all() {
    let cases: &[Case] = &[
        ("while all run nothing is done", pod_with_rule, |_| {}, ""),
        ("all others are ended without a hook and without grace", asked, |_| {}, "kill:i1-0@0s+a-0@0s"),
        (
            "then all are removed, whoever asked for it last",
            ended,
            |_| {},
            "reset:i1-0 reset:a-0 reset:i2-0 reset:b-0",
        ),
        (
            "with what is left of instances before them",
            ended,
            |w| {
                w.add("a", 1, ContainerState::Exited, 0);
            },
            "reset:a-1 reset:i1-0 remove:a-0 reset:i2-0 reset:b-0",
        ),
        (
            "as long as that one is there it goes on, also in another agent",
            ended,
            |w| w.observed.containers.retain(|c| c.name == "b"),
            "reset:b-0",
        ),
        (
            "and the pod starts over in its sandbox",
            ended,
            |w| {
                w.observed.containers.clear();
                w.state.instances.clear();
            },
            "start:i1#0",
        ),
        (
            "guests are not part of it",
            asked,
            |w| {
                w.running("guest");
            },
            "kill:i1-0@0s+a-0@0s",
        ),
        (
            "another code is an end like any other",
            pod_with_rule,
            |w| {
                w.forget("b");
                w.exited("b", 0, 1);
            },
            "",
        ),
        (
            "what the agent has ended itself asks for nothing",
            pod_with_rule,
            |w| {
                w.spec().containers[1].image = Some("new".into());
                w.end_as_planned(42);
            },
            "start:b#1",
        ),
        (
            "an init container can ask for it too",
            pod_with_rule,
            |w| {
                w.spec().init_containers.as_mut().unwrap()[1] = restarts_all(container("i2"), 3);
                w.observed.containers.clear();
                w.running("i1");
                w.exited("i2", 0, 3);
            },
            "kill:i1-0@0s",
        ),
        (
            "one that is ended for it has not failed, so the pod goes on",
            pod_with_rule,
            |w| {
                w.spec().init_containers.as_mut().unwrap()[0] = restarts_all(sidecar("i1"), 42);
                w.observed.containers.clear();
                w.exited("i1", 0, 42);
                w.running("i2");
                w.end_as_planned(143);
            },
            "reset:i2-0 reset:i1-0",
        ),
        (
            "a sandbox that died meanwhile changes nothing",
            asked,
            |w| w.observed.sandboxes[0].state = SandboxState::NotReady,
            "kill:i1-0@0s+a-0@0s",
        ),
        (
            "a pod that is being deleted does not start over",
            asked,
            |w| {
                let meta = &mut Arc::make_mut(&mut w.desired.pod).metadata;
                meta.deletion_timestamp = Some(Time(at(900)));
                meta.deletion_grace_period_seconds = Some(5);
            },
            "kill:i1-0@5s<a-0+a-0@5s",
        ),
    ];
    check(cases);
}

#[test]
fn no_back_off_is_served_for_it() {
    let mut w = asked();
    let long = Backoff::resumed(CRASH, 5, std::time::Duration::ZERO);
    w.state.containers.entry("b".into()).or_default().crash_backoff = long;
    assert_eq!(w.say(), "kill:i1-0@0s+a-0@0s");
    assert_eq!(w.state.containers["b"].crash_backoff, long);
}
