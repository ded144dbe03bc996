use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, Pod, PodSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::allocation::ResizeStep;
use crate::backoff::{Backoff, CRASH};
use crate::desired::{DesiredPod, PodSource, TerminationReason};
use crate::facts::ProbeVerdicts;
use crate::hash::container_hash;
use crate::ids::PodUid;
use crate::observed::{ContainerState, ObservedContainer, ObservedSandbox, SandboxState};
use crate::pod::{CleanUp, Directive, Eviction, Order, ResizeOrder, VolumesState};
use crate::probe::ProbeKind;

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

/// A container whose exit with this code restarts all.
fn restarts_all(c: Container, code: i32) -> Container {
    let exit_codes = ContainerRestartRuleOnExitCodes { operator: "In".into(), values: Some(vec![code]) };
    let rule = ContainerRestartRule { action: "RestartAllContainers".into(), exit_codes: Some(exit_codes) };
    let restart_policy = c.restart_policy.clone().or(Some("Never".into()));
    Container { restart_policy, restart_policy_rules: Some(vec![rule]), ..c }
}

/// A sidecar that says itself when it has started.
fn probed_sidecar(name: &str) -> Container {
    Container { startup_probe: Some(Default::default()), ..sidecar(name) }
}

fn ran() -> k8s_openapi::api::core::v1::ContainerState {
    k8s_openapi::api::core::v1::ContainerState { running: Some(Default::default()), ..Default::default() }
}

/// One situation; every case mutates what it is about.
#[derive(Debug)]
struct World {
    desired: DesiredPod,
    observed: ObservedPod,
    state: PodState,
    directive: Directive,
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
            probes: BTreeMap::new(),
            host_ips: vec![],
            runtime_name: "containerd".into(),
            recursive_read_only: false,
        },
        state: PodState::default(),
        directive: Directive::default(),
    }
}

/// Everything as it should be.
fn converged() -> World {
    let mut w = fresh();
    w.state.volumes.state = VolumesState::Ready;
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
                user_namespace: None,
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
        let wanted = self.desired.container(name).cloned().unwrap_or_else(|| container(name));
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
                hash: Some(container_hash(&wanted)),
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

    fn order(&self) -> Order {
        let resize = ResizeOrder { pending: None, granted: self.desired.pod.metadata.generation };
        Order { desired: Some(self.desired.clone()), directive: self.directive.clone(), resize }
    }

    fn advance(&mut self) {
        let order = self.order();
        self.state.desired = order.desired.clone();
        self.state.lifecycle = advance(&order, &self.state, &self.observed, self.facts.now);
    }

    /// Ends what the plan wants ended, with this exit code.
    fn end_as_planned(&mut self, exit_code: i32) {
        self.advance();
        for action in plan(&self.state, &self.observed, &self.facts).actions {
            let Action::KillContainers(kills) = action else { continue };
            for kill in kills {
                self.state.begin_stop(&kill);
                let ended = self.observed.containers.iter_mut().find(|c| c.id == kill.id).unwrap();
                (ended.state, ended.exit_code) = (ContainerState::Exited, exit_code);
                ended.finished_at = Some(self.facts.now);
            }
        }
    }

    /// Sidecars that run, have a startup probe, and have not passed it yet.
    fn starting_sidecars(&self) -> Vec<ContainerId> {
        let probed = |name: &str| self.desired.container(name).is_some_and(|c| c.startup_probe.is_some());
        let started = |id: &ContainerId| self.facts.probes.get(id).is_some_and(|v| v.started);
        let starting = self.observed.running().filter(|c| probed(&c.name) && !started(&c.id));
        starting.map(|c| c.id.clone()).collect()
    }

    fn sidecar_starts(&mut self, id: ContainerId) {
        self.facts.probes.insert(id, ProbeVerdicts { started: true, ready: true, unhealthy: None });
    }

    /// Init containers that are to end by themselves.
    fn running_inits(&self) -> Vec<String> {
        let ends = |name: &str| {
            let inits = self.desired.pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
            inits.into_iter().any(|c| c.name == name && c.restart_policy.is_none())
        };
        self.observed.running().map(|c| c.name.clone()).filter(|name| ends(name)).collect()
    }

    fn unhealthy(&mut self, id: &str) {
        self.failed(ProbeKind::Liveness, id);
    }

    fn failed(&mut self, kind: ProbeKind, id: &str) {
        let started = kind != ProbeKind::Startup;
        let verdicts = ProbeVerdicts { started, ready: false, unhealthy: Some(kind) };
        self.facts.probes.insert(ContainerId::try_from(id).unwrap(), verdicts);
    }

    /// The plan in short words, after the life has moved on.
    fn say(&mut self) -> String {
        self.advance();
        let plan = plan(&self.state, &self.observed, &self.facts);
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
            let each = kills.iter().map(|k| {
                let before: String = k.after.iter().map(|id| format!("<{id}")).collect();
                format!("{}@{}s{before}", k.id, k.grace_seconds)
            });
            format!("kill:{}", each.collect::<Vec<_>>().join("+"))
        }
        Action::Resize(resize) => {
            format!("resize:{}", resize.steps.iter().map(step_word).collect::<Vec<_>>().join(","))
        }
        Action::RemoveContainer { id } => format!("remove:{id}"),
        Action::ResetContainer { id } => format!("reset:{id}"),
        Action::UnmountVolumes => "unmount".into(),
        Action::RemoveCgroup => "no-cgroup".into(),
        Action::Finish => "finish".into(),
        Action::RemoveDirectories => "no-dirs".into(),
    }
}

fn step_word(step: &ResizeStep) -> String {
    match step {
        ResizeStep::Pod(part) => format!("{part:?}"),
        ResizeStep::Container { id, part, .. } => format!("{id}-{part:?}"),
        ResizeStep::PodDone(part) => format!("{part:?}-done"),
    }
}

type Case = (&'static str, fn() -> World, fn(&mut World), &'static str);

fn check(cases: &[Case]) {
    for (name, base, change, expected) in cases {
        let mut world = base();
        change(&mut world);
        assert_eq!(world.say(), *expected, "{name}");
    }
}

mod convergence;
mod ending;
mod failures;
mod resets;
mod resizes;
mod restarts;
mod running;
mod simulation;
