//! One fixture, mutated by every case: a pod with one main container `a`, seen running and ready.

mod conditions;
mod containers;
mod phases;
mod properties;
mod restarting;
mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use serde_json::{Value, json};

use super::{StatusInput, derive};
use crate::desired::{DesiredPod, Lifecycle, PodSource, TerminationReason};
use crate::facts::{Facts, ProbeVerdicts};
use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox, SandboxState};
use crate::pod::{PodState, VolumesState, Waiting};

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

pub(super) fn evicted() -> TerminationReason {
    TerminationReason::Evicted {
        reason: "Evicted".into(),
        message: "The node was low on resource: memory.".into(),
    }
}

#[derive(Debug, Clone)]
pub(super) struct World {
    pub desired: DesiredPod,
    pub observed: ObservedPod,
    pub state: PodState,
    pub facts: Facts,
}

pub(super) fn world() -> World {
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 3},
        "spec": {"containers": [{"name": "a", "image": "img"}], "restartPolicy": "Always"},
    });
    let uid = PodUid::try_from("u").unwrap();
    let sandbox = ObservedSandbox {
        id: SandboxId::try_from("sb0").unwrap(),
        attempt: 0,
        state: SandboxState::Ready,
        created_at: at(1),
        ips: vec!["10.1.0.4".parse().unwrap()],
        host_network: false,
        runtime_handler: String::new(),
        user_namespace: None,
    };
    let mut observed = ObservedPod::empty(uid.clone(), "ns", "p");
    observed.sandboxes.push(sandbox);
    let mut world = World {
        desired: DesiredPod {
            uid,
            source: PodSource::Api,
            pod: Arc::new(serde_json::from_value(pod).unwrap()),
        },
        observed,
        facts: Facts {
            now: at(100),
            probes: BTreeMap::new(),
            host_ips: vec!["192.0.2.1".parse().unwrap()],
            runtime_name: "containerd".into(),
            recursive_read_only: false,
        },
        state: PodState::default(),
    };
    world.state.volumes.state = VolumesState::Ready;
    world.run("a", 0);
    world
}

impl World {
    /// Changes the pod's JSON at a pointer.
    pub fn pod(&mut self, pointer: &str, value: Value) -> &mut Self {
        let mut json = serde_json::to_value(&*self.desired.pod).unwrap();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        json.pointer_mut(parent).unwrap()[key] = value;
        self.desired.pod = Arc::new(serde_json::from_value::<Pod>(json).unwrap());
        self
    }

    pub fn restart_policy(&mut self, policy: &str) -> &mut Self {
        self.pod("/spec/restartPolicy", json!(policy))
    }

    pub fn init(&mut self, containers: Value) -> &mut Self {
        self.pod("/spec/initContainers", containers)
    }

    pub fn nothing_runs(&mut self) -> &mut Self {
        self.observed.containers.clear();
        self
    }

    pub fn run(&mut self, name: &str, attempt: u32) -> &mut Self {
        self.instance(name, attempt, ContainerState::Running, 0)
    }

    pub fn exit(&mut self, name: &str, attempt: u32, code: i32) -> &mut Self {
        self.instance(name, attempt, ContainerState::Exited, code)
    }

    /// Adds an instance of a container, or replaces the one of the same attempt.
    pub fn instance(&mut self, name: &str, attempt: u32, state: ContainerState, code: i32) -> &mut Self {
        self.observed.containers.retain(|c| !(c.name == name && c.attempt == attempt));
        let started = state == ContainerState::Running || state == ContainerState::Exited;
        let base = i64::from(attempt) * 10;
        self.observed.containers.push(ObservedContainer {
            id: ContainerId::try_from(format!("{name}{attempt}")).unwrap(),
            sandbox_id: SandboxId::try_from("sb0").unwrap(),
            name: name.into(),
            attempt,
            state,
            created_at: at(base + 2),
            started_at: started.then(|| at(base + 3)),
            finished_at: (state == ContainerState::Exited).then(|| at(base + 4)),
            exit_code: code,
            reason: String::new(),
            message: String::new(),
            image: "img".into(),
            image_id: "sha256:1".into(),
            hash: None,
            termination_message_path: None,
            termination_message_policy: None,
            termination_message_host_path: None,
            log_path: String::new(),
            termination_grace_seconds: None,
            deletion_grace_seconds: None,
            pre_stop: None,
            resources: None,
            user: None,
        });
        self
    }

    pub fn waits(&mut self, name: &str, reason: &str, message: &str) -> &mut Self {
        let why = Waiting { reason: reason.into(), message: message.into(), retry_at: None };
        self.state.containers.entry(name.into()).or_default().waiting = Some(why);
        self
    }

    pub fn verdict(&mut self, id: &str, started: bool, ready: bool) -> &mut Self {
        let id = ContainerId::try_from(id).unwrap();
        self.facts.probes.insert(id, ProbeVerdicts { started, ready, unhealthy: None });
        self
    }

    pub fn terminating(&mut self, reason: TerminationReason) -> &mut Self {
        self.state.lifecycle = Lifecycle::Terminating { reason, deadline: at(130) };
        self
    }

    pub fn terminated(&mut self, reason: TerminationReason) -> &mut Self {
        self.state.lifecycle = Lifecycle::Terminated { reason };
        self
    }

    /// Takes what is shown now for what was shown before.
    pub fn remember(&mut self) -> &mut Self {
        self.state.previous_status = Arc::new(self.derive());
        self
    }

    pub fn derive(&self) -> PodStatus {
        derive(&StatusInput {
            desired: &self.desired,
            observed: &self.observed,
            state: &self.state,
            facts: &self.facts,
            held_back: &BTreeMap::new(),
        })
    }
}

pub(super) fn container<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|c| c.name == name).unwrap()
}

/// A container in one line: state, last state, restarts, readiness.
pub(super) fn line(status: &PodStatus, name: &str) -> String {
    let c = container(status, name);
    let show = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
        let Some(state) = state else { return "none".to_owned() };
        let or = |t: &Option<String>| t.clone().unwrap_or_default();
        match (&state.waiting, &state.running, &state.terminated) {
            (Some(w), None, None) => format!("waiting {}", or(&w.reason)),
            (None, Some(_), None) => "running".to_owned(),
            (None, None, Some(t)) => format!("ended {} {}", or(&t.reason), t.exit_code),
            other => format!("not one state: {other:?}"),
        }
    };
    let ready = if c.ready { "ready" } else { "unready" };
    format!("{}; last {}; restarts {}; {ready}", show(&c.state), show(&c.last_state), c.restart_count)
}
