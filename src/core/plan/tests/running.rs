//! What is done for a pod that is to run.

use super::*;

fn guest(w: &mut World) {
    let guest = k8s_openapi::api::core::v1::EphemeralContainer { name: "guest".into(), ..Default::default() };
    w.spec().ephemeral_containers = Some(vec![guest]);
}

#[test]
fn a_pod_that_is_to_run() {
    let cases: &[Case] = &[
        ("nothing is there", fresh, |_| {}, "cgroup mount sandbox#0 start:i1#0"),
        (
            "without init containers the main ones start together",
            fresh,
            |w| w.spec().init_containers = None,
            "cgroup mount sandbox#0 start:a#0 start:b#0",
        ),
        ("a converged pod needs nothing", converged, |_| {}, ""),
        (
            "after a restart of the agent only volumes are checked",
            converged,
            |w| w.state.volumes.state = VolumesState::Pending,
            "cgroup mount",
        ),
        (
            "the second init container follows the first",
            converged,
            |w| {
                w.forget("a");
                w.forget("b");
                w.forget("i2");
            },
            "start:i2#0",
        ),
        (
            "a running init container is waited for",
            converged,
            |w| {
                w.forget("a");
                w.forget("b");
                w.forget("i2");
                w.add("i2", 0, ContainerState::Running, 0);
            },
            "",
        ),
        (
            "a failed init container runs again",
            converged,
            |w| {
                w.forget("a");
                w.forget("b");
                w.forget("i2");
                w.add("i2", 0, ContainerState::Exited, 1);
            },
            "start:i2#1",
        ),
        (
            "init containers the runtime has forgotten do not run again",
            converged,
            |w| {
                w.forget("i1");
                w.forget("i2");
            },
            "",
        ),
        (
            "one that the runtime has forgotten is done when the next one is there",
            converged,
            |w| {
                for name in ["a", "b", "i1"] {
                    w.forget(name);
                }
            },
            "start:a#0 start:b#0",
        ),
        (
            "one that ran out of memory has failed, whatever it exited with",
            converged,
            |w| {
                for name in ["a", "b", "i2"] {
                    w.forget(name);
                }
                w.add("i2", 0, ContainerState::Exited, 0).reason = "OOMKilled".into();
            },
            "start:i2#1",
        ),
        (
            "a changed image of an init container that runs lets it run",
            converged,
            |w| {
                for name in ["a", "b", "i2"] {
                    w.forget(name);
                }
                w.running("i2");
                w.spec().init_containers.as_mut().unwrap()[1].image = Some("new".into());
            },
            "",
        ),
        (
            "an ephemeral container does not wait for init containers",
            converged,
            |w| {
                for name in ["a", "b", "i2"] {
                    w.forget(name);
                }
                w.running("i2");
                guest(w);
            },
            "start:guest#0",
        ),
        (
            "nor for the pull of an image for one",
            converged,
            |w| {
                for name in ["a", "b", "i2"] {
                    w.forget(name);
                }
                guest(w);
            },
            "start:guest#0 start:i2#0",
        ),
        (
            "but there is nothing to look at without a sandbox",
            fresh,
            guest,
            "cgroup mount sandbox#0 start:i1#0",
        ),
        (
            "a crashed main container is restarted",
            converged,
            |w| {
                w.forget("a");
                w.add("a", 0, ContainerState::Exited, 1);
            },
            "start:a#1",
        ),
        (
            "even if it succeeded, with Always",
            converged,
            |w| {
                w.forget("a");
                w.add("a", 3, ContainerState::Exited, 0);
            },
            "start:a#4",
        ),
        (
            "but not with OnFailure",
            converged,
            |w| {
                w.spec().restart_policy = Some("OnFailure".into());
                w.forget("a");
                w.add("a", 0, ContainerState::Exited, 0);
            },
            "",
        ),
        (
            "a container's own policy goes first",
            converged,
            |w| {
                w.spec().restart_policy = Some("Never".into());
                w.spec().containers[0].restart_policy = Some("OnFailure".into());
                w.forget("a");
                w.add("a", 0, ContainerState::Exited, 3);
            },
            "start:a#1",
        ),
        (
            "a container in back-off is held back, the other is not",
            converged,
            |w| {
                w.forget("a");
                w.forget("b");
                w.add("a", 1, ContainerState::Exited, 1);
                w.add("b", 0, ContainerState::Exited, 1);
                w.state.containers.entry("a".into()).or_default().crash_backoff = Backoff::default()
                    .next(CRASH, std::time::Duration::ZERO)
                    .next(CRASH, std::time::Duration::ZERO);
            },
            "start:b#1",
        ),
        (
            "an image that does not pull holds back its own container only",
            converged,
            |w| {
                w.forget("a");
                w.forget("b");
                w.state.containers.entry("a".into()).or_default().waiting = Some(Waiting {
                    reason: "ErrImagePull".into(),
                    message: String::new(),
                    retry_at: Some(at(1005)),
                });
            },
            "start:b#0",
        ),
        (
            "of two running instances the older one goes",
            converged,
            |w| {
                w.add("a", 1, ContainerState::Running, 0);
            },
            "kill:a-0@30s",
        ),
        (
            "a container that was created but never started is no restart",
            converged,
            |w| {
                w.forget("a");
                w.add("a", 2, ContainerState::Created, 0);
            },
            "remove:a-2 start:a#2",
        ),
        (
            "an unknown state is ended before anything replaces it",
            converged,
            |w| {
                w.forget("a");
                w.add("a", 0, ContainerState::Unknown, 0);
            },
            "kill:a-0@30s",
        ),
        (
            "a changed image restarts one container",
            converged,
            |w| w.spec().containers[1].image = Some("new".into()),
            "kill:b-0@30s",
        ),
        ("a failed liveness probe ends one container", converged, |w| w.unhealthy("a-0"), "kill:a-0@30s"),
        (
            "a dead sandbox takes its containers along",
            converged,
            |w| {
                w.observed.sandboxes[0].state = SandboxState::NotReady;
            },
            "kill:b-0@30s+a-0@30s",
        ),
        (
            "and a new one starts over",
            converged,
            |w| {
                w.observed.sandboxes[0].state = SandboxState::NotReady;
                w.end_as_planned(137);
            },
            "cgroup mount sandbox#1 start:i1#1",
        ),
        (
            "what crashed in a dead sandbox does not wait for its back-off",
            converged,
            |w| {
                w.spec().init_containers = None;
                w.observed.containers.clear();
                w.add("a", 1, ContainerState::Exited, 1);
                w.add("b", 0, ContainerState::Exited, 1);
                w.observed.sandboxes[0].state = SandboxState::NotReady;
                w.state.containers.entry("a".into()).or_default().crash_backoff =
                    Backoff::resumed(CRASH, 5, std::time::Duration::ZERO);
            },
            "cgroup mount sandbox#1 start:a#2 start:b#1",
        ),
        (
            "a sandbox that keeps dying is given time between",
            converged,
            |w| {
                w.observed.sandboxes[0].attempt = 1;
                w.observed.sandboxes[0].created_at = at(995);
                w.observed.sandboxes[0].state = SandboxState::NotReady;
            },
            "kill:b-0@30s+a-0@30s",
        ),
        (
            "a sandbox without an address is no sandbox",
            converged,
            |w| w.observed.sandboxes[0].ips.clear(),
            "kill:b-0@30s+a-0@30s stop-sandbox:s0",
        ),
        (
            "on the host's network it needs none",
            converged,
            |w| {
                w.observed.sandboxes[0].ips.clear();
                w.spec().host_network = Some(true);
            },
            "",
        ),
        (
            "of two ready sandboxes neither is trusted",
            converged,
            |w| w.sandbox("s1", 1, SandboxState::Ready),
            "kill:b-0@30s+a-0@30s stop-sandbox:s1 stop-sandbox:s0",
        ),
        (
            "a failed sandbox is not tried again before its time",
            fresh,
            |w| {
                w.state.sandbox.failure =
                    Some(Waiting { reason: "x".into(), message: String::new(), retry_at: Some(at(1001)) });
            },
            "",
        ),
        (
            "one dead instance is kept for its log, older ones go",
            converged,
            |w| {
                w.forget("a");
                w.add("a", 0, ContainerState::Exited, 1);
                w.add("a", 1, ContainerState::Exited, 1);
                w.add("a", 2, ContainerState::Running, 0);
            },
            "remove:a-0",
        ),
        (
            "the restart count survives a runtime that has forgotten everything",
            fresh,
            |w| {
                w.spec().init_containers = None;
                let status = k8s_openapi::api::core::v1::ContainerStatus {
                    name: "a".into(),
                    restart_count: 4,
                    state: Some(ran()),
                    ..Default::default()
                };
                let unborn = k8s_openapi::api::core::v1::ContainerStatus {
                    name: "b".into(),
                    container_id: Some("containerd://never-started".into()),
                    ..Default::default()
                };
                Arc::make_mut(&mut w.state.previous_status).container_statuses = Some(vec![status, unborn]);
            },
            "cgroup mount sandbox#0 start:a#5 start:b#0",
        ),
        (
            "a sidecar starts before what follows it and is not waited for to end",
            fresh,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
                w.state.volumes.state = VolumesState::Ready;
                w.sandbox("s0", 0, SandboxState::Ready);
                w.add("i1", 0, ContainerState::Running, 0);
            },
            "start:i2#0",
        ),
        (
            "a sidecar that has not started yet holds the next one back",
            fresh,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
                w.state.volumes.state = VolumesState::Ready;
                w.sandbox("s0", 0, SandboxState::Ready);
                w.add("i1", 0, ContainerState::Running, 0);
                let v = ProbeVerdicts { started: false, ready: false, unhealthy: None };
                w.facts.probes.insert(ContainerId::try_from("i1-0").unwrap(), v);
            },
            "",
        ),
        (
            "nor does one go on while nobody has probed the sidecar yet",
            fresh,
            |w| {
                w.spec().init_containers = Some(vec![probed_sidecar("i1"), container("i2")]);
                w.state.volumes.state = VolumesState::Ready;
                w.sandbox("s0", 0, SandboxState::Ready);
                w.add("i1", 0, ContainerState::Running, 0);
            },
            "",
        ),
        (
            "a sidecar that died is restarted and does not hold back what was reached after it",
            converged,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
                w.forget("a");
                w.forget("b");
            },
            "start:i1#1 start:a#0 start:b#0",
        ),
        (
            "a sidecar that dies while the pod runs is restarted",
            converged,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
            },
            "start:i1#1",
        ),
    ];
    check(cases);
}
