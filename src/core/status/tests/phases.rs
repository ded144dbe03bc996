use super::*;
use crate::admission::Rejection;
use crate::plan::advance;
use crate::pod::{Directive, Order, ResizeOrder};

type Change = fn(&mut World);

#[test]
fn the_phase_is_where_a_pod_is_in_its_life() {
    let cases: Vec<(&str, Change, &str)> = vec![
        ("it runs", |_| {}, "Running"),
        (
            "nothing was started",
            |w| {
                w.nothing_runs();
            },
            "Pending",
        ),
        (
            "one of two was not started",
            |w| {
                w.pod("/spec/containers", json!([{"name": "a"}, {"name": "b"}]));
            },
            "Pending",
        ),
        (
            "an init container runs",
            |w| {
                w.init(json!([{"name": "i"}])).nothing_runs().run("i", 0);
            },
            "Pending",
        ),
        (
            "an init container failed and is tried again",
            |w| {
                w.init(json!([{"name": "i"}])).nothing_runs().exit("i", 0, 1);
            },
            "Pending",
        ),
        (
            "an init container failed for good",
            |w| {
                w.restart_policy("Never").init(json!([{"name": "i"}])).nothing_runs().exit("i", 0, 1);
            },
            "Failed",
        ),
        (
            "a container crashed and comes back",
            |w| {
                w.exit("a", 0, 1);
            },
            "Running",
        ),
        (
            "a container is held back",
            |w| {
                w.exit("a", 0, 1).waits("a", "CrashLoopBackOff", "x");
            },
            "Running",
        ),
        (
            "it ended well and comes back",
            |w| {
                w.exit("a", 0, 0);
            },
            "Running",
        ),
        (
            "it ended well",
            |w| {
                w.restart_policy("OnFailure").exit("a", 0, 0);
            },
            "Succeeded",
        ),
        (
            "it failed for good",
            |w| {
                w.restart_policy("Never").exit("a", 0, 1);
            },
            "Failed",
        ),
        (
            "one ended, one runs",
            |w| {
                w.restart_policy("Never")
                    .pod("/spec/containers", json!([{"name": "a"}, {"name": "b"}]))
                    .exit("a", 0, 1)
                    .run("b", 0);
            },
            "Running",
        ),
        (
            "one failed, one ended well",
            |w| {
                w.restart_policy("Never")
                    .pod("/spec/containers", json!([{"name": "a"}, {"name": "b"}]))
                    .exit("a", 0, 1)
                    .exit("b", 0, 0);
            },
            "Failed",
        ),
        (
            "a container's own rule restarts it",
            |w| {
                w.restart_policy("Never")
                    .pod("/spec/containers/0/restartPolicy", json!("Never"))
                    .pod(
                        "/spec/containers/0/restartPolicyRules",
                        json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]),
                    )
                    .exit("a", 0, 42);
            },
            "Running",
        ),
        (
            "and no other code",
            |w| {
                w.restart_policy("Never")
                    .pod("/spec/containers/0/restartPolicy", json!("Never"))
                    .pod(
                        "/spec/containers/0/restartPolicyRules",
                        json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]),
                    )
                    .exit("a", 0, 43);
            },
            "Failed",
        ),
        (
            "a sidecar still runs after the main container ended",
            |w| {
                w.restart_policy("Never")
                    .init(json!([{"name": "s", "restartPolicy": "Always"}]))
                    .exit("a", 0, 0)
                    .run("s", 0);
            },
            "Running",
        ),
        (
            "and has ended too",
            |w| {
                w.restart_policy("Never")
                    .init(json!([{"name": "s", "restartPolicy": "Always"}]))
                    .exit("a", 0, 0)
                    .exit("s", 0, 143);
            },
            "Succeeded",
        ),
        (
            "a sidecar is not started yet",
            |w| {
                w.init(json!([{"name": "s", "restartPolicy": "Always", "startupProbe": {}}]))
                    .nothing_runs()
                    .run("s", 0);
            },
            "Pending",
        ),
        (
            "a sidecar restarts beside running containers",
            |w| {
                w.init(json!([{"name": "s", "restartPolicy": "Always", "startupProbe": {}}])).run("s", 1);
            },
            "Running",
        ),
        (
            "the runtime forgot a container that ran",
            |w| {
                w.remember().nothing_runs();
            },
            "Running",
        ),
        (
            "a deleted pod still stops",
            |w| {
                w.terminating(TerminationReason::Deleted);
            },
            "Running",
        ),
        (
            "a deleted pod's containers ended well",
            |w| {
                w.terminating(TerminationReason::Deleted).exit("a", 0, 0);
            },
            "Succeeded",
        ),
        (
            "a deleted pod's containers were killed",
            |w| {
                w.terminating(TerminationReason::Deleted).exit("a", 0, 137);
            },
            "Failed",
        ),
        (
            "a deleted pod never started",
            |w| {
                w.nothing_runs().terminated(TerminationReason::Deleted);
            },
            "Failed",
        ),
        (
            "a manifest's pod may come back",
            |w| {
                w.desired.source = PodSource::Static;
                w.terminating(TerminationReason::Deleted).exit("a", 0, 137);
            },
            "Running",
        ),
        (
            "an evicted pod still stops",
            |w| {
                w.remember().terminating(evicted());
            },
            "Running",
        ),
        (
            "an evicted pod is gone",
            |w| {
                w.remember().terminating(evicted()).exit("a", 0, 0);
            },
            "Failed",
        ),
        (
            "what ended stays ended",
            |w| {
                w.restart_policy("Never").exit("a", 0, 0).remember().run("a", 1);
            },
            "Succeeded",
        ),
        (
            "what the API holds for ended stays ended",
            |w| {
                w.pod("/status", json!({"phase": "Failed"}));
            },
            "Failed",
        ),
    ];
    for (what, change, want) in cases {
        let mut w = world();
        change(&mut w);
        assert_eq!(w.derive().phase.as_deref(), Some(want), "{what}");
    }
}

#[test]
fn an_eviction_says_why_once_it_is_over() {
    let mut w = world();
    w.remember().terminating(evicted());
    let stopping = w.derive();
    assert_eq!((stopping.reason, stopping.message), (None, None), "it still runs");

    let over = w.exit("a", 0, 143).derive();
    assert_eq!(over.reason.as_deref(), Some("Evicted"));
    assert_eq!(over.message.as_deref(), Some("The node was low on resource: memory."));
    w.remember().terminated(TerminationReason::Completed);
    assert_eq!(w.derive().reason.as_deref(), Some("Evicted"), "the reason stays with the phase");
}

#[test]
fn a_pod_that_is_gone_leaves_nothing_open() {
    let mut w = world();
    w.init(json!([{"name": "i"}, {"name": "j"}])).nothing_runs().run("i", 0).remember();
    w.nothing_runs().terminated(TerminationReason::Deleted);
    let status = w.derive();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert!(line(&status, "i").starts_with("ended ContainerStatusUnknown 137"));
    assert!(line(&status, "j").starts_with("waiting PodInitializing"), "its turn never came");
    assert!(line(&status, "a").starts_with("waiting PodInitializing"), "its turn never came");

    let mut w = world();
    w.nothing_runs().terminated(TerminationReason::Deleted);
    assert!(line(&w.derive(), "a").starts_with("ended ContainerStatusUnknown 137"));
}

#[test]
fn a_refused_pod_fails_with_the_reason_and_has_no_containers_to_show() {
    let mut w = world();
    w.init(json!([{"name": "i"}])).nothing_runs().observed.sandboxes.clear();
    let why = Rejection { reason: "OutOfcpu".into(), message: "not enough".into() };
    let order = Order {
        desired: Some(w.desired.clone()),
        directive: Directive::Refuse(why),
        resize: ResizeOrder::default(),
    };
    w.state.lifecycle = advance(&order, &w.state, &w.observed, w.facts.now);
    let status = w.derive();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    assert_eq!(status.message.as_deref(), Some("Pod was rejected: not enough"));
    assert_eq!(
        (status.start_time.clone().unwrap().0, status.qos_class.as_deref()),
        (at(100), Some("BestEffort"))
    );
    let shown = |s: &PodStatus| (s.container_statuses.is_some(), s.init_container_statuses.is_some());
    assert_eq!(shown(&status), (false, false));

    w.remember().terminated(TerminationReason::Deleted);
    let deleted = w.derive();
    assert_eq!((shown(&deleted), deleted.message), ((false, false), status.message.clone()), "it stays so");
    w.state = Default::default();
    w.pod("/status", serde_json::to_value(&status).unwrap());
    w.state.previous_status = std::sync::Arc::new(status);
    w.terminated(TerminationReason::Completed);
    assert_eq!(shown(&w.derive()), (false, false), "also after a restart of the agent");
}

#[test]
fn a_refused_pod_of_which_something_runs_shows_it() {
    let mut w = world();
    let refused = TerminationReason::Refused { reason: "OutOfcpu".into(), message: "not enough".into() };
    w.terminating(refused.clone());
    assert_eq!(line(&w.derive(), "a"), "running; last none; restarts 0; ready");
    w.exit("a", 0, 143).terminated(refused);
    let status = w.derive();
    assert!(line(&status, "a").starts_with("ended Error 143"), "{}", line(&status, "a"));
    assert_eq!(status.message.as_deref(), Some("Pod was rejected: not enough"));
}

#[test]
fn addresses_follow_the_sandbox_and_outlive_it() {
    let ips =
        |s: &PodStatus| s.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect::<Vec<_>>().join(" ");
    let mut w = world();
    w.observed.sandboxes[0].ips =
        vec!["fd00::4".parse().unwrap(), "10.1.0.4".parse().unwrap(), "10.1.0.5".parse().unwrap()];
    let status = w.derive();
    assert_eq!(ips(&status), "10.1.0.4 fd00::4", "one of each family, the node's first");
    assert_eq!((status.pod_ip.as_deref(), status.host_ip.as_deref()), (Some("10.1.0.4"), Some("192.0.2.1")));

    w.remember();
    w.observed.sandboxes[0].state = SandboxState::NotReady;
    w.observed.sandboxes[0].ips.clear();
    assert_eq!(ips(&w.derive()), "10.1.0.4 fd00::4", "a pod that ended keeps its address");
    w.observed.sandboxes[0].state = SandboxState::Ready;
    assert_eq!(ips(&w.derive()), "", "a new sandbox has none of the old ones");

    let mut w = world();
    w.pod("/spec/hostNetwork", json!(true));
    w.observed.sandboxes[0].ips.clear();
    assert_eq!(ips(&w.derive()), "192.0.2.1");
    w.remember();
    w.facts.host_ips = vec!["192.0.2.9".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    assert_eq!(ips(&w.derive()), "192.0.2.1 2001:db8::1", "the first stays, a second family joins");
}

#[test]
fn times_and_generation_only_move_forward() {
    let mut w = world();
    assert_eq!(w.derive().start_time.unwrap().0, at(100));
    w.remember();
    w.facts.now = at(200);
    w.pod("/metadata/generation", json!(2));
    let status = w.derive();
    assert_eq!((status.start_time.unwrap().0, status.observed_generation), (at(100), Some(3)));
}

#[test]
fn the_pods_own_requests_are_shown_in_sum() {
    let mut w = world();
    w.pod(
        "/spec/containers",
        json!([
            {"name": "a", "resources": {"requests": {"cpu": "500m", "memory": "64Mi"}}},
            {"name": "b", "resources": {"requests": {"cpu": "500m", "memory": "64Mi"}}},
        ]),
    );
    let status = serde_json::to_value(w.derive()).unwrap();
    assert_eq!(status["allocatedResources"], json!({"cpu": "1", "memory": "128Mi"}));
    assert_eq!(status["qosClass"], json!("Burstable"));
}

#[test]
fn what_was_ended_for_a_restart_is_never_shown_as_ended_for_good() {
    for (ordered, expected) in [
        (false, "ended Completed 0; last none; restarts 0; unready"),
        (true, "waiting ContainerCreating; last ended Completed 0; restarts 0; unready"),
    ] {
        let mut w = world();
        w.restart_policy("OnFailure").exit("a", 0, 0);
        let restart = ordered.then_some(crate::plan::Restart { counted_from: None });
        let ended = ContainerId::try_from("a0").unwrap();
        w.state.containers.entry("a".into()).or_default().restart = restart.map(|restart| (ended, restart));
        let status = w.derive();
        assert_eq!(line(&status, "a"), expected);
        let phase = if ordered { "Running" } else { "Succeeded" };
        assert_eq!(status.phase.as_deref(), Some(phase));
        // Nor when the runtime has forgotten it before the next one is there.
        w.state.previous_status = status.into();
        w.observed.containers.clear();
        w.state.observed(&w.observed);
        assert_eq!(w.derive().phase.as_deref(), Some(phase));
    }
}

#[test]
fn that_a_pod_has_ended_is_not_said_in_the_midst_of_an_action() {
    let meanwhile = |w: &World| {
        super::super::derive_meanwhile(&StatusInput {
            desired: &w.desired,
            observed: &w.observed,
            state: &w.state,
            facts: &w.facts,
            held_back: &BTreeMap::new(),
        })
        .and_then(|status| status.phase)
    };
    let mut w = world();
    w.restart_policy("Never");
    assert_eq!(meanwhile(&w).as_deref(), Some("Running"));
    w.exit("a", 0, 0);
    assert_eq!(meanwhile(&w), None);
    w.remember();
    assert_eq!(meanwhile(&w).as_deref(), Some("Succeeded"), "what was said before stays");
}
