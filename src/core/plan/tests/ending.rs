//! What is done for a pod that is to go, whoever ends it.

use super::*;

#[test]
fn a_pod_that_is_to_go() {
    fn deleted(w: &mut World, grace: i64) {
        let meta = &mut Arc::make_mut(&mut w.desired.pod).metadata;
        meta.deletion_timestamp = Some(Time(at(900)));
        meta.deletion_grace_period_seconds = Some(grace);
    }
    let cases: &[Case] = &[
        (
            "all main containers are stopped together, within the asked grace",
            converged,
            |w| deleted(w, 5),
            "kill:b-0@5s+a-0@5s",
        ),
        (
            "even a grace of nothing lets a process see SIGTERM",
            converged,
            |w| deleted(w, 0),
            "kill:b-0@1s+a-0@1s",
        ),
        (
            "a pod that never started is cleaned up at once",
            fresh,
            |w| deleted(w, 5),
            "unmount no-cgroup finish no-dirs",
        ),
        (
            "a sidecar begins to end with the others and is signalled after them",
            converged,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
                w.forget("i1");
                w.add("i1", 0, ContainerState::Running, 0);
                deleted(w, 5);
            },
            "kill:i1-0@5s<b-0<a-0+b-0@5s+a-0@5s",
        ),
        (
            "the last sidecar goes first",
            converged,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), sidecar("i2")]);
                for name in ["i1", "i2", "a", "b"] {
                    w.forget(name);
                }
                w.add("i1", 0, ContainerState::Running, 0);
                w.add("i2", 0, ContainerState::Running, 0);
                deleted(w, 5);
            },
            "kill:i2-0@5s+i1-0@5s<i2-0",
        ),
        (
            "an init container that still runs is waited for by nobody",
            converged,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
                w.observed.containers.clear();
                w.running("i1");
                w.running("i2");
                deleted(w, 5);
            },
            "kill:i2-0@5s+i1-0@5s",
        ),
        (
            "when the time is up nobody waits for anybody",
            converged,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
                w.forget("i1");
                w.running("i1");
                deleted(w, 5);
                w.advance();
                w.facts.now = at(1005);
            },
            "kill:i1-0@1s+b-0@1s+a-0@1s",
        ),
        (
            "a container that was never started is only removed",
            converged,
            |w| {
                w.forget("a");
                w.forget("b");
                w.add("a", 0, ContainerState::Created, 0);
                deleted(w, 5);
            },
            "remove:a-0",
        ),
        (
            "a pod whose processes have ended is taken apart, its object before its remains",
            converged,
            |w| {
                w.forget("a");
                w.forget("b");
                deleted(w, 5);
            },
            "stop-sandbox:s0 unmount no-cgroup finish remove-sandbox:s0 no-dirs",
        ),
        (
            "a pod that ran out of time is stopped",
            converged,
            |w| {
                w.spec().active_deadline_seconds = Some(60);
                Arc::make_mut(&mut w.state.previous_status).start_time = Some(Time(at(10)));
            },
            "kill:b-0@30s+a-0@30s",
        ),
        (
            "a failed init container ends a pod that never restarts",
            converged,
            |w| {
                w.spec().restart_policy = Some("Never".into());
                w.forget("a");
                w.forget("b");
                w.forget("i2");
                w.add("i2", 0, ContainerState::Exited, 1);
            },
            "stop-sandbox:s0 unmount no-cgroup finish",
        ),
        (
            "a completed pod keeps its containers for their logs",
            converged,
            |w| {
                w.spec().restart_policy = Some("Never".into());
                w.forget("a");
                w.forget("b");
                w.add("a", 0, ContainerState::Exited, 0);
                w.add("b", 0, ContainerState::Exited, 0);
            },
            "stop-sandbox:s0 unmount no-cgroup finish",
        ),
        (
            "and is left alone after that",
            converged,
            |w| {
                Arc::make_mut(&mut w.state.previous_status).phase = Some("Succeeded".into());
                for name in ["a", "b"] {
                    w.forget(name);
                }
                w.observed.sandboxes[0].state = SandboxState::NotReady;
                w.state.clean_up = CleanUp::Finished(TerminationReason::Completed);
            },
            "",
        ),
        (
            "until it is deleted",
            converged,
            |w| {
                w.state.lifecycle = Lifecycle::Terminated { reason: TerminationReason::Completed };
                for name in ["a", "b"] {
                    w.forget(name);
                }
                w.observed.sandboxes[0].state = SandboxState::NotReady;
                w.state.clean_up = CleanUp::Finished(TerminationReason::Completed);
                deleted(w, 30);
            },
            "finish remove-sandbox:s0 no-dirs",
        ),
    ];
    check(cases);
}

#[test]
fn a_pod_that_the_node_ends() {
    fn evict(w: &mut World) {
        w.directive = Directive::Evict(Eviction {
            reason: "Evicted".into(),
            message: "The node was low on resource: memory.".into(),
            grace: std::time::Duration::from_secs(3),
        });
    }
    fn refuse(w: &mut World) {
        let (reason, message) = ("OutOfcpu".into(), "not enough".into());
        w.directive = Directive::Refuse(crate::admission::Rejection { reason, message });
    }
    let cases: &[Case] = &[
        ("a refused pod has nothing to stop", fresh, refuse, "unmount no-cgroup finish"),
        ("one that runs after all is stopped with its own grace", converged, refuse, "kill:b-0@30s+a-0@30s"),
        ("an evicted pod is stopped with the eviction's grace", converged, evict, "kill:b-0@3s+a-0@3s"),
        ("one that never started only fails", fresh, evict, "unmount no-cgroup finish"),
        (
            "sidecars go after the others, in an eviction too",
            converged,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
                w.forget("i1");
                w.add("i1", 0, ContainerState::Running, 0);
                evict(w);
            },
            "kill:i1-0@3s<b-0<a-0+b-0@3s+a-0@3s",
        ),
        (
            "what it leaves behind is kept for its logs",
            converged,
            |w| {
                evict(w);
                w.advance();
                for c in &mut w.observed.containers {
                    c.state = ContainerState::Exited;
                }
            },
            "stop-sandbox:s0 unmount no-cgroup finish",
        ),
        (
            "a pod that is being deleted is not evicted",
            converged,
            |w| {
                evict(w);
                let meta = &mut Arc::make_mut(&mut w.desired.pod).metadata;
                meta.deletion_timestamp = Some(Time(at(900)));
                meta.deletion_grace_period_seconds = Some(20);
            },
            "kill:b-0@20s+a-0@20s",
        ),
        (
            "an eviction hurries a pod that is stopping already",
            converged,
            |w| {
                w.spec().active_deadline_seconds = Some(60);
                Arc::make_mut(&mut w.state.previous_status).start_time = Some(Time(at(10)));
                w.advance();
                evict(w);
            },
            "kill:b-0@3s+a-0@3s",
        ),
    ];
    check(cases);
}

#[test]
fn an_eviction_ends_in_the_reason_that_it_was_given() {
    let mut w = converged();
    w.directive = Directive::Evict(Eviction {
        reason: "Evicted".into(),
        message: "The node was low on resource: memory.".into(),
        grace: std::time::Duration::ZERO,
    });
    w.advance();
    let Lifecycle::Terminating { reason, deadline } = w.state.lifecycle.clone() else { panic!() };
    assert_eq!(deadline, at(1001), "a process always sees SIGTERM first");
    w.directive = Directive::default();
    w.observed.containers.iter_mut().for_each(|c| c.state = ContainerState::Exited);
    w.advance();
    assert_eq!(
        w.state.lifecycle,
        Lifecycle::Terminated { reason: reason.clone() },
        "an eviction is not taken back"
    );
    let message = "The node was low on resource: memory.".into();
    assert_eq!(reason, TerminationReason::Evicted { reason: "Evicted".into(), message });
}

#[test]
fn a_pod_that_has_finished_by_itself_is_not_evicted() {
    let mut w = converged();
    w.spec().restart_policy = Some("Never".into());
    for name in ["a", "b"] {
        w.forget(name);
        w.add(name, 0, ContainerState::Exited, 0);
    }
    let (reason, message) = ("Evicted".into(), "too late".into());
    w.directive = Directive::Evict(Eviction { reason, message, grace: std::time::Duration::ZERO });
    w.advance();
    assert_eq!(w.state.lifecycle, Lifecycle::Terminated { reason: TerminationReason::Completed });
}

#[test]
fn a_pod_that_ran_out_of_time_says_so_once_and_one_that_is_done_never_does() {
    let late = || {
        let mut w = converged();
        w.spec().restart_policy = Some("Never".into());
        w.spec().active_deadline_seconds = Some(60);
        Arc::make_mut(&mut w.state.previous_status).start_time = Some(Time(at(10)));
        w
    };
    let enter = |w: &mut World| {
        let next = advance(&w.order(), &w.state, &w.observed, w.facts.now);
        w.state.enter(next).map(|e| e.reason)
    };
    let mut w = late();
    assert_eq!(enter(&mut w), Some("DeadlineExceeded"));
    assert_eq!(enter(&mut w), None);
    w.observed.containers.iter_mut().for_each(|c| c.state = ContainerState::Exited);
    assert_eq!(enter(&mut w), None);
    let mut done = late();
    done.observed.containers.iter_mut().for_each(|c| c.state = ContainerState::Exited);
    assert_eq!(enter(&mut done), None);
    assert_eq!(done.state.lifecycle, Lifecycle::Terminated { reason: TerminationReason::Completed });
    let mut deleted = converged();
    Arc::make_mut(&mut deleted.desired.pod).metadata.deletion_timestamp = Some(Time(at(900)));
    assert_eq!(enter(&mut deleted), None);
}

#[test]
fn a_second_deletion_may_shorten_the_grace_but_never_lengthen_it() {
    let mut w = converged();
    let deadline = |w: &World| match &w.state.lifecycle {
        Lifecycle::Terminating { deadline, .. } => *deadline,
        other => panic!("{other:?}"),
    };
    for (grace, now, expected) in [(30, 1000, 1030), (60, 1001, 1030), (5, 1002, 1007), (30, 1003, 1007)] {
        let meta = &mut Arc::make_mut(&mut w.desired.pod).metadata;
        meta.deletion_timestamp = Some(Time(at(now)));
        meta.deletion_grace_period_seconds = Some(grace);
        w.facts.now = at(now);
        w.say();
        assert_eq!(deadline(&w), at(expected), "grace {grace} at {now}");
    }
}

#[test]
fn a_stop_signal_is_followed_by_two_seconds_at_least_whatever_came_before_it() {
    use std::time::Duration;
    for (grace_seconds, spent, hook, window) in [
        (30, 0, 30_000, 30),
        (30, 12_900, 17_100, 18),
        (30, 29_000, 1000, 2),
        (30, 90_000, 0, 2),
        (1, 0, 1000, 2),
        (0, 0, 0, 2),
    ] {
        let kill = Kill {
            id: ContainerId::try_from("a-0").unwrap(),
            name: "a".into(),
            grace_seconds,
            message: String::new(),
            restart: None,
            after: vec![],
        };
        let spent = Duration::from_millis(spent);
        let got = (kill.patience(spent), kill.signal_window(spent));
        assert_eq!(got, (Duration::from_millis(hook), window), "{spent:?} of {grace_seconds} s");
    }
}

#[test]
fn an_orphan_is_stopped_with_the_grace_that_was_written_into_the_runtime() {
    let mut w = converged();
    w.observed.containers.iter_mut().for_each(|c| c.termination_grace_seconds = Some(7));
    w.state.lifecycle = advance(&Order::vanished(), &w.state, &w.observed, w.facts.now);
    let Lifecycle::Terminating { reason, deadline } = &w.state.lifecycle else { panic!() };
    assert_eq!((reason, *deadline), (&TerminationReason::Orphaned, at(1007)));
    let plan = plan(&w.state, &w.observed, &w.facts);
    assert_eq!(plan.actions.iter().map(word).collect::<String>(), "kill:b-0@7s+a-0@7s");
}

#[test]
fn a_back_off_says_how_long_and_when() {
    let mut w = converged();
    w.forget("a");
    w.add("a", 1, ContainerState::Exited, 1);
    let served =
        Backoff::default().next(CRASH, std::time::Duration::ZERO).next(CRASH, std::time::Duration::ZERO);
    w.state.containers.entry("a".into()).or_default().crash_backoff = served;
    w.advance();
    let plan = plan(&w.state, &w.observed, &w.facts);
    let waiting = &plan.waiting["a"];
    assert_eq!(waiting.reason, "CrashLoopBackOff");
    assert_eq!(waiting.message, "back-off 20s restarting failed container=a pod=p_ns(u1)");
    assert_eq!(plan.requeue_at, Some(at(990).checked_add(SignedDuration::from_secs(20)).unwrap()));
}
