use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::backoff::{Backoff, CRASH};
use crate::desired::{PodSource, TerminationReason};
use crate::facts::{CleanUp, ProbeVerdicts, VolumesState};
use crate::hash::container_hash;
use crate::ids::PodUid;
use crate::observed::{ContainerState, ObservedContainer, ObservedSandbox, SandboxState};

const T0: i64 = 1_800_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(T0 + seconds).unwrap()
}

fn container(name: &str) -> Container {
    Container { name: name.into(), image: Some("image".into()), ..Default::default() }
}

fn sidecar(name: &str) -> Container {
    Container { restart_policy: Some("Always".into()), ..container(name) }
}

fn ran() -> k8s_openapi::api::core::v1::ContainerState {
    k8s_openapi::api::core::v1::ContainerState { running: Some(Default::default()), ..Default::default() }
}

/// One situation; every case mutates what it is about.
#[derive(Debug)]
struct World {
    desired: DesiredPod,
    observed: ObservedPod,
    facts: Facts,
}

/// Two init and two main containers, nothing there yet.
fn fresh() -> World {
    let uid = PodUid::try_from("u1").unwrap();
    let spec = PodSpec {
        init_containers: Some(vec![container("i1"), container("i2")]),
        containers: vec![container("a"), container("b")],
        restart_policy: Some("Always".into()),
        termination_grace_period_seconds: Some(30),
        ..Default::default()
    };
    let mut pod = Pod { spec: Some(spec), ..Default::default() };
    pod.metadata.name = Some("p".into());
    pod.metadata.namespace = Some("ns".into());
    World {
        desired: DesiredPod { uid: uid.clone(), source: PodSource::Api, pod: Arc::new(pod) },
        observed: ObservedPod::empty(uid, "ns", "p"),
        facts: Facts {
            now: at(1000),
            lifecycle: Lifecycle::Syncing,
            clean_up: CleanUp::Pending,
            probes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            crash_backoff: BTreeMap::new(),
            volumes: VolumesState::Pending,
            sandbox_failure: None,
            host_ips: vec![],
            termination_messages: BTreeMap::new(),
            hooks_running: vec![],
            previous: PodStatus::default(),
            runtime_name: "containerd".into(),
            recursive_read_only: false,
        },
    }
}

/// Everything as it should be.
fn converged() -> World {
    let mut w = fresh();
    w.facts.volumes = VolumesState::Ready;
    w.sandbox("s0", 0, SandboxState::Ready);
    for (i, name) in ["i1", "i2"].into_iter().enumerate() {
        w.exited(name, i as i64, 0);
    }
    w.running("a");
    w.running("b");
    w
}

impl World {
    fn spec(&mut self) -> &mut PodSpec {
        Arc::make_mut(&mut self.desired.pod).spec.as_mut().unwrap()
    }

    fn sandbox(&mut self, id: &str, attempt: u32, state: SandboxState) {
        let ips = if state == SandboxState::Ready { vec!["10.0.0.2".parse().unwrap()] } else { vec![] };
        self.observed.sandboxes.insert(
            0,
            ObservedSandbox {
                id: SandboxId::try_from(id).unwrap(),
                attempt,
                state,
                created_at: at(i64::from(attempt)),
                ips,
                host_network: false,
                runtime_handler: String::new(),
            },
        );
    }

    fn add(
        &mut self,
        name: &str,
        attempt: u32,
        state: ContainerState,
        exit_code: i32,
    ) -> &mut ObservedContainer {
        let image = container(name);
        let sandbox_id = self.observed.sandboxes[0].id.clone();
        let exited = state == ContainerState::Exited;
        self.observed.containers.insert(
            0,
            ObservedContainer {
                id: ContainerId::try_from(format!("{name}-{attempt}")).unwrap(),
                sandbox_id,
                name: name.into(),
                attempt,
                state,
                created_at: at(10),
                started_at: (state != ContainerState::Created).then(|| at(11)),
                finished_at: exited.then(|| at(990)),
                exit_code,
                reason: String::new(),
                message: String::new(),
                image: "image".into(),
                image_id: "sha".into(),
                hash: Some(container_hash(&image)),
                termination_message_path: None,
                termination_message_policy: None,
                termination_message_host_path: None,
                log_path: String::new(),
                termination_grace_seconds: Some(30),
                deletion_grace_seconds: None,
                pre_stop: None,
                resources: None,
                user: None,
            },
        );
        &mut self.observed.containers[0]
    }

    fn exited(&mut self, name: &str, _order: i64, code: i32) {
        self.add(name, 0, ContainerState::Exited, code);
    }

    fn running(&mut self, name: &str) {
        self.add(name, 0, ContainerState::Running, 0);
    }

    fn forget(&mut self, name: &str) {
        self.observed.containers.retain(|c| c.name != name);
    }

    /// The plan in short words, after the life has moved on.
    fn say(&mut self) -> String {
        self.facts.lifecycle = advance(Some(&self.desired), &self.observed, &self.facts);
        let plan = plan(&self.desired, &self.observed, &self.facts);
        plan.actions.iter().map(word).collect::<Vec<_>>().join(" ")
    }
}

fn word(a: &Action) -> String {
    match a {
        Action::EnsureCgroup => "cgroup".into(),
        Action::MountVolumes => "mount".into(),
        Action::CreateSandbox { attempt } => format!("sandbox#{attempt}"),
        Action::StopSandbox { id } => format!("stop-sandbox:{id}"),
        Action::RemoveSandbox { id } => format!("remove-sandbox:{id}"),
        Action::StartContainer { name, attempt, .. } => format!("start:{name}#{attempt}"),
        Action::KillContainers(kills) => {
            let each: Vec<_> = kills.iter().map(|k| format!("{}@{}s", k.id, k.grace_seconds)).collect();
            format!("kill:{}", each.join("+"))
        }
        Action::RemoveContainer { id } => format!("remove:{id}"),
        Action::UnmountVolumes => "unmount".into(),
        Action::RemoveCgroup => "no-cgroup".into(),
        Action::Finish => "finish".into(),
        Action::RemoveDirectories => "no-dirs".into(),
    }
}

type Case = (&'static str, fn() -> World, fn(&mut World), &'static str);

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
            "after a restart of the agent only volumes are looked at",
            converged,
            |w| w.facts.volumes = VolumesState::Pending,
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
                w.facts.crash_backoff.insert(
                    "a".into(),
                    Backoff::default()
                        .next(CRASH, std::time::Duration::ZERO)
                        .next(CRASH, std::time::Duration::ZERO),
                );
            },
            "start:b#1",
        ),
        (
            "an image that does not pull holds back its own container only",
            converged,
            |w| {
                w.forget("a");
                w.forget("b");
                w.facts.waiting.insert(
                    "a".into(),
                    Waiting {
                        reason: "ErrImagePull".into(),
                        message: String::new(),
                        retry_at: Some(at(1005)),
                    },
                );
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
        (
            "a failed liveness probe ends one container",
            converged,
            |w| {
                let id = ContainerId::try_from("a-0").unwrap();
                let v = ProbeVerdicts {
                    started: true,
                    ready: false,
                    unhealthy: Some("failed liveness probe".into()),
                };
                w.facts.probes.insert(id, v);
            },
            "kill:a-0@30s",
        ),
        (
            "a dead sandbox takes its containers along and a new one starts over",
            converged,
            |w| {
                w.observed.sandboxes[0].state = SandboxState::NotReady;
            },
            "kill:b-0@30s+a-0@30s cgroup mount sandbox#1 start:i1#1",
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
                w.facts
                    .crash_backoff
                    .insert("a".into(), Backoff::resumed(CRASH, 5, std::time::Duration::ZERO));
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
            "kill:b-0@30s+a-0@30s stop-sandbox:s0 cgroup mount sandbox#1 start:i1#1",
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
            "kill:b-0@30s+a-0@30s stop-sandbox:s1 stop-sandbox:s0 cgroup mount sandbox#2 start:i1#1",
        ),
        (
            "a failed sandbox is not tried again before its time",
            fresh,
            |w| {
                w.facts.sandbox_failure =
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
                w.facts.previous.container_statuses = Some(vec![status, unborn]);
            },
            "cgroup mount sandbox#0 start:a#5 start:b#0",
        ),
        (
            "a sidecar starts before what follows it and is not waited for to end",
            fresh,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
                w.facts.volumes = VolumesState::Ready;
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
                w.facts.volumes = VolumesState::Ready;
                w.sandbox("s0", 0, SandboxState::Ready);
                w.add("i1", 0, ContainerState::Running, 0);
                let v = ProbeVerdicts { started: false, ready: false, unhealthy: None };
                w.facts.probes.insert(ContainerId::try_from("i1-0").unwrap(), v);
            },
            "",
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
            "a sidecar is stopped after the others",
            converged,
            |w| {
                w.spec().init_containers = Some(vec![sidecar("i1"), container("i2")]);
                w.forget("i1");
                w.add("i1", 0, ContainerState::Running, 0);
                deleted(w, 5);
            },
            "kill:b-0@5s+a-0@5s",
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
            "kill:i2-0@5s",
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
                w.facts.previous.start_time = Some(Time(at(10)));
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
                w.facts.previous.phase = Some("Succeeded".into());
                for name in ["a", "b"] {
                    w.forget(name);
                }
                w.observed.sandboxes[0].state = SandboxState::NotReady;
                w.facts.clean_up = CleanUp::Finished(TerminationReason::Completed);
            },
            "",
        ),
        (
            "until it is deleted",
            converged,
            |w| {
                w.facts.lifecycle = Lifecycle::Terminated { reason: TerminationReason::Completed };
                for name in ["a", "b"] {
                    w.forget(name);
                }
                w.observed.sandboxes[0].state = SandboxState::NotReady;
                w.facts.clean_up = CleanUp::Finished(TerminationReason::Completed);
                deleted(w, 30);
            },
            "finish remove-sandbox:s0 no-dirs",
        ),
    ];
    check(cases);
}

fn check(cases: &[Case]) {
    for (name, base, change, expected) in cases {
        let mut world = base();
        change(&mut world);
        assert_eq!(world.say(), *expected, "{name}");
    }
}

#[test]
fn a_second_deletion_may_shorten_the_grace_but_never_lengthen_it() {
    let mut w = converged();
    let deadline = |w: &World| match &w.facts.lifecycle {
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
fn an_orphan_is_stopped_with_the_grace_that_was_written_into_the_runtime() {
    let mut w = converged();
    w.observed.containers.iter_mut().for_each(|c| c.termination_grace_seconds = Some(7));
    w.facts.lifecycle = advance(None, &w.observed, &w.facts);
    let Lifecycle::Terminating { reason, deadline } = &w.facts.lifecycle else { panic!() };
    assert_eq!((reason, *deadline), (&TerminationReason::Orphaned, at(1007)));
    let plan = plan_orphan(&w.observed, &w.facts);
    assert_eq!(plan.actions.iter().map(word).collect::<String>(), "kill:b-0@7s+a-0@7s");
}

#[test]
fn a_back_off_says_how_long_and_when() {
    let mut w = converged();
    w.forget("a");
    w.add("a", 1, ContainerState::Exited, 1);
    let served =
        Backoff::default().next(CRASH, std::time::Duration::ZERO).next(CRASH, std::time::Duration::ZERO);
    w.facts.crash_backoff.insert("a".into(), served);
    let plan = plan(&w.desired, &w.observed, &w.facts);
    let waiting = &plan.waiting["a"];
    assert_eq!(waiting.reason, "CrashLoopBackOff");
    assert_eq!(waiting.message, "back-off 20s restarting failed container=a pod=p_ns(u1)");
    assert_eq!(plan.requeue_at, Some(at(990).checked_add(SignedDuration::from_secs(20)).unwrap()));
}

mod convergence;
