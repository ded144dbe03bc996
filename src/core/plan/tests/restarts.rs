//! Restarts that the agent orders itself: after a failed probe, or for a changed definition.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

use super::*;

/// Without init containers, so that a and b are all there is.
fn pair() -> World {
    let mut w = converged();
    w.spec().init_containers = None;
    w
}

fn changed(w: &mut World) {
    w.spec().containers[0].image = Some("new".into());
}

#[test]
fn what_the_agent_ended_for_a_restart_runs_again_whatever_it_exited_with() {
    type Case = (&'static str, &'static str, fn(&mut World), i32, &'static str);
    let cases: [Case; 9] = [
        ("unhealthy, ends well", "OnFailure", |w| w.unhealthy("a-0"), 0, "start:a#1"),
        ("unhealthy, ends badly", "OnFailure", |w| w.unhealthy("a-0"), 143, "start:a#1"),
        ("unhealthy, with Always", "Always", |w| w.unhealthy("a-0"), 0, "start:a#1"),
        ("unhealthy, with Never", "Never", |w| w.unhealthy("a-0"), 143, ""),
        (
            "unhealthy, by its own policy",
            "Never",
            |w| {
                w.unhealthy("a-0");
                w.spec().containers[0].restart_policy = Some("OnFailure".into());
            },
            0,
            "start:a#1",
        ),
        ("another image, with OnFailure", "OnFailure", changed, 0, "start:a#1"),
        ("another image, with Never", "Never", changed, 143, "start:a#1"),
        (
            "another image of one that has ended",
            "Never",
            |w| {
                changed(w);
                w.forget("a");
                w.exited("a", 0, 0);
            },
            0,
            "",
        ),
        (
            "a state that nobody can read",
            "Never",
            |w| {
                w.forget("a");
                w.add("a", 0, ContainerState::Unknown, 0);
            },
            137,
            "start:a#1",
        ),
    ];
    for (name, policy, change, code, expected) in cases {
        let mut w = pair();
        w.spec().restart_policy = Some(policy.into());
        change(&mut w);
        w.end_as_planned(code);
        assert_eq!(w.say(), expected, "{name}");
        assert!(w.state.lifecycle.is_syncing(), "{name}: b runs");
    }
}

#[test]
fn a_pod_goes_on_when_its_last_container_was_ended_for_a_restart() {
    let mut w = pair();
    w.spec().restart_policy = Some("OnFailure".into());
    w.forget("b");
    w.exited("b", 0, 0);
    w.unhealthy("a-0");
    w.end_as_planned(0);
    assert_eq!(w.say(), "start:a#1");
    let status = crate::status::derive(&crate::status::StatusInput {
        desired: &w.desired,
        observed: &w.observed,
        state: &w.state,
        facts: &w.facts,
        held_back: &BTreeMap::new(),
    });
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn what_dies_with_its_sandbox_follows_the_policy() {
    for (policy, code, expected) in [
        ("Always", 0, "cgroup mount sandbox#1 start:a#1 start:b#1"),
        ("OnFailure", 0, "cgroup mount sandbox#1 start:a#1 start:b#1"),
        ("Never", 137, "unmount no-cgroup finish"),
    ] {
        let mut w = pair();
        w.spec().restart_policy = Some(policy.into());
        w.observed.sandboxes[0].state = SandboxState::NotReady;
        w.end_as_planned(code);
        assert_eq!(w.say(), expected, "{policy}");
    }
}

#[test]
fn the_back_off_of_what_the_agent_ended_counts_from_the_instance_before() {
    // a crashed at 990 and was started again; its delay is 20 s by now.
    let crashed = |served: u32| {
        let mut w = pair();
        w.forget("a");
        w.exited("a", 0, 1);
        w.add("a", 1, ContainerState::Running, 0);
        let backoff = Backoff::resumed(CRASH, served, Duration::ZERO);
        w.state.containers.entry("a".into()).or_default().crash_backoff = backoff;
        w.unhealthy("a-1");
        w
    };
    let mut w = crashed(1);
    w.end_as_planned(137);
    assert_eq!(w.say(), "start:a#2 remove:a-0", "ten seconds have passed since the crash");
    let mut w = crashed(2);
    w.end_as_planned(137);
    w.facts.now = at(1005);
    w.advance();
    let plan = plan(&w.state, &w.observed, &w.facts);
    assert_eq!(plan.waiting["a"].retry_at, Some(at(1010)), "twenty since the crash, not since the end");

    let mut w = pair();
    w.unhealthy("a-0");
    w.end_as_planned(137);
    w.advance();
    let first = super::plan(&w.state, &w.observed, &w.facts);
    let Action::StartContainer { after, .. } = &first.actions[0] else { panic!("{first:?}") };
    assert_eq!(after, &None, "the first end by the agent is nobody's crash");
}

#[test]
fn a_restart_that_was_held_back_survives_the_agent() {
    let mut w = pair();
    w.spec().restart_policy = Some("OnFailure".into());
    w.forget("a");
    w.exited("a", 0, 1);
    w.add("a", 1, ContainerState::Running, 0);
    let backoff = Backoff::resumed(CRASH, 3, Duration::ZERO);
    w.state.containers.entry("a".into()).or_default().crash_backoff = backoff;
    w.unhealthy("a-1");
    w.end_as_planned(0);
    w.advance();
    let held = plan(&w.state, &w.observed, &w.facts);
    let status = crate::status::derive(&crate::status::StatusInput {
        desired: &w.desired,
        observed: &w.observed,
        state: &w.state,
        facts: &w.facts,
        held_back: &held.waiting,
    });
    assert_eq!(status.phase.as_deref(), Some("Running"));
    Arc::make_mut(&mut w.desired.pod).status = Some(status);
    w.state = PodState::new(Some(w.desired.clone()), &w.observed, Default::default());
    w.state.volumes.state = VolumesState::Ready;
    w.facts.now = at(2000);
    assert_eq!(w.say(), "start:a#2 remove:a-0");
}

#[test]
fn the_grace_is_that_of_the_probe_that_failed() {
    use ProbeKind::{Liveness, Startup};
    let probe = |seconds| Some(Probe { termination_grace_period_seconds: seconds, ..Default::default() });
    for (name, liveness, startup, failed, expected) in [
        ("both have one, liveness failed", Some(5), Some(7), Liveness, "kill:a-0@5s"),
        ("both have one, startup failed", Some(5), Some(7), Startup, "kill:a-0@7s"),
        ("only the other one has", Some(5), None, Startup, "kill:a-0@30s"),
        ("only the other one has, turned round", None, Some(7), Liveness, "kill:a-0@30s"),
        ("neither has", None, None, Liveness, "kill:a-0@30s"),
        ("none at all is a second", Some(0), None, Liveness, "kill:a-0@1s"),
        ("it may be longer than the pod's", None, Some(600), Startup, "kill:a-0@600s"),
    ] {
        let mut w = pair();
        w.spec().containers[0].liveness_probe = probe(liveness);
        w.spec().containers[0].startup_probe = probe(startup);
        w.failed(failed, "a-0");
        assert_eq!(w.say(), expected, "{name}");
    }
}

#[test]
fn the_event_says_whether_a_restart_follows() {
    type Case = (&'static str, &'static str, fn(&mut World), &'static str);
    let cases: [Case; 5] = [
        (
            "never started",
            "Always",
            |w| w.failed(ProbeKind::Startup, "a-0"),
            "Container a failed startup probe, will be restarted",
        ),
        (
            "restarted",
            "OnFailure",
            |w| w.unhealthy("a-0"),
            "Container a failed liveness probe, will be restarted",
        ),
        ("not restarted", "Never", |w| w.unhealthy("a-0"), "Container a failed liveness probe"),
        ("changed", "Never", changed, "Container a definition changed, will be restarted"),
        (
            "a sidecar",
            "Always",
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1")]);
                w.forget("i1");
                w.running("i1");
                w.unhealthy("i1-0");
            },
            "Init container i1 failed liveness probe",
        ),
    ];
    for (name, policy, change, expected) in cases {
        let mut w = pair();
        w.spec().restart_policy = Some(policy.into());
        change(&mut w);
        w.advance();
        let plan = plan(&w.state, &w.observed, &w.facts);
        let Some(Action::KillContainers(kills)) = plan.actions.first() else { panic!("{name}: {plan:?}") };
        assert_eq!(kills[0].message, expected, "{name}");
    }
}
