//! A pod's worker without a machine: the real decisions (`advance`, `plan`, `apply`, `derive`) over a model of the runtime
//! and a clock that only moves when somebody waits or acts. Any action can be made to fail any number of times.

mod actions;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerResizePolicy, ResourceRequirements, SecretVolumeSource, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;
use crate::allocation::Allocation;
use crate::status::{StatusInput, derive};
use crate::volumes::Change;

/// Where an action can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    Cgroup,
    Mount,
    Sandbox,
    SandboxReserved,
    Pull,
    Config,
    Create,
    CreateReserved,
    Start,
    PostStart,
    Kill,
    StopSandbox,
    RemoveSandbox,
    RemoveContainer,
    Unmount,
    RemoveCgroup,
    Finish,
    RemoveDirectories,
    Resize,
}

pub(super) const FAULTS: [Fault; 19] = [
    Fault::Cgroup,
    Fault::Mount,
    Fault::Sandbox,
    Fault::SandboxReserved,
    Fault::Pull,
    Fault::Config,
    Fault::Create,
    Fault::CreateReserved,
    Fault::Start,
    Fault::PostStart,
    Fault::Kill,
    Fault::StopSandbox,
    Fault::RemoveSandbox,
    Fault::RemoveContainer,
    Fault::Unmount,
    Fault::RemoveCgroup,
    Fault::Finish,
    Fault::RemoveDirectories,
    Fault::Resize,
];

/// What happens to the pod from outside.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    /// A container that runs exits with a code.
    Exit(&'static str, i32),
    /// A container that runs fails its liveness probe for good.
    Unhealthy(&'static str),
    /// A container is given another image.
    ImageChanges(&'static str),
    SandboxDies,
    ObjectsChange,
    /// A container is granted so much memory, and is to be restarted for it or not.
    Resize(&'static str, i64, bool),
    /// The agent is killed and started again: its memory is gone.
    AgentRestarts,
    /// And so is what it has recorded.
    AgentLosesFiles,
    Delete,
    Vanish,
    Decide(Directive),
}

/// Each action takes this long.
const STEP: Duration = Duration::from_millis(10);

pub(super) struct Simulation {
    pub w: World,
    /// Whether the next attempts at each action fail; when all are used up, nothing does.
    pub faults: BTreeMap<Fault, VecDeque<bool>>,
    /// At which instant, earliest first.
    pub happenings: VecDeque<(Timestamp, Happening)>,
    vanished: bool,
    /// No action at all before this, nor a certain one.
    held: Option<Timestamp>,
    held_key: BTreeMap<String, (Timestamp, Fault)>,
    /// Delays by key, kept apart from what the state remembers.
    served: BTreeMap<String, Duration>,
    /// What the present plan was made from.
    planned_from: ObservedPod,
    /// What the agent has ended for a restart, and when the instance before it ended.
    pub ordered: BTreeMap<ContainerId, Option<Timestamp>>,
    made: u32,
    renewals: u32,
    /// What the agent has written down of the cgroups.
    record: Option<Arc<Allocation>>,
    images: u32,
}

impl Simulation {
    pub fn new(mut w: World) -> Self {
        let secret = |name: &str| Volume {
            name: name.to_owned(),
            secret: Some(SecretVolumeSource { secret_name: Some("s".into()), ..Default::default() }),
            ..Default::default()
        };
        w.spec().volumes = Some(vec![secret("v1"), secret("v2")]);
        Self {
            planned_from: w.observed.clone(),
            w,
            faults: BTreeMap::new(),
            happenings: VecDeque::new(),
            vanished: false,
            held: None,
            held_key: BTreeMap::new(),
            served: BTreeMap::new(),
            ordered: BTreeMap::new(),
            made: 0,
            renewals: 0,
            record: None,
            images: 0,
        }
    }

    /// Rounds of deciding, acting and waiting until nothing is left to be done and nothing more happens.
    pub fn run(&mut self) {
        for _ in 0..5000 {
            self.let_happen();
            let plan = self.decide();
            if self.w.state.clean_up == CleanUp::Gone {
                return;
            }
            let now = self.w.facts.now;
            if !plan.actions.is_empty() && self.w.state.held_until(now).is_none() {
                self.execute(plan.actions);
                continue;
            }
            if !self.w.state.soften_image_failures().is_empty() {
                continue;
            }
            let wake = self.w.state.wake_at(&plan, now);
            assert!(wake.is_none_or(|at| at > now), "due in the past: {wake:?} at {now}: {:?}", self.w.state);
            let (inits, sidecars) = (self.w.running_inits(), self.w.starting_sidecars());
            let awaited = (!inits.is_empty() || !sidecars.is_empty()).then(|| now + Duration::from_secs(1));
            let next = self.happenings.front().map(|(at, _)| *at);
            let Some(at) = [wake, next, awaited].into_iter().flatten().min() else {
                assert!(plan.actions.is_empty(), "held forever: {:?}", plan.actions);
                return;
            };
            self.w.facts.now = at;
            if awaited == Some(at) {
                inits.first().iter().for_each(|name| self.exit(name, 0));
                sidecars.into_iter().for_each(|id| self.w.sidecar_starts(id));
            }
        }
        panic!("did not converge: {:?} {:?}", self.w.state, self.w.observed);
    }

    fn decide(&mut self) -> Plan {
        let w = &mut self.w;
        w.state.observed(&w.observed);
        let order = if self.vanished { Order::vanished() } else { w.order() };
        w.state.take_order(&order);
        let next = advance(&order, &w.state, &w.observed, w.facts.now);
        if next != w.state.lifecycle {
            self.held = None;
            self.served.remove("quiet");
        }
        assert!(rank(&next) >= rank(&w.state.lifecycle), "a life goes forwards only: {next:?}");
        w.state.enter(next);
        w.state.refresh_volumes(w.facts.now);
        if w.observed.latest_sandbox().is_some_and(|s| s.state == SandboxState::NotReady) {
            let by_sandbox = [Fault::Create, Fault::CreateReserved, Fault::Start];
            self.held_key.retain(|_, (_, fault)| !by_sandbox.contains(fault));
        }
        w.state.review_resize(&w.observed);
        self.planned_from.clone_from(&w.observed);
        let plan = plan(&w.state, &w.observed, &w.facts);
        check_sidecar(w, &plan);
        w.state.report_backoff(&plan, &w.observed);
        w.state.previous_status = Arc::new(derive(&StatusInput {
            desired: &w.desired,
            observed: &w.observed,
            state: &w.state,
            facts: &w.facts,
            held_back: &plan.waiting,
        }));
        plan
    }

    fn execute(&mut self, actions: Vec<Action>) {
        assert!(self.held.is_none_or(|at| at <= self.w.facts.now), "too early for anything: {actions:?}");
        for action in actions {
            self.w.facts.now += STEP;
            let done = self.act(action);
            self.record.clone_from(&self.w.state.actuated);
            if !done {
                return;
            }
            // An order interrupts; anything else is seen before the next step.
            if self.happenings.front().is_some_and(|(at, _)| *at <= self.w.facts.now) {
                return;
            }
        }
        self.w.state.round_succeeded();
        self.held = None;
        self.served.remove("quiet");
    }

    fn stop_sandbox(&mut self, id: &SandboxId) {
        for s in self.w.observed.sandboxes.iter_mut().filter(|s| s.id == *id) {
            s.state = SandboxState::NotReady;
        }
        self.end(|c| c.sandbox_id == *id, 137);
    }

    fn remove_sandbox(&mut self, id: &SandboxId) {
        self.w.observed.sandboxes.retain(|s| s.id != *id);
        self.w.observed.containers.retain(|c| c.sandbox_id != *id);
    }

    fn end(&mut self, which: impl Fn(&ObservedContainer) -> bool, code: i32) {
        let now = self.w.facts.now;
        let alive =
            |c: &&mut ObservedContainer| matches!(c.state, ContainerState::Running | ContainerState::Unknown);
        for c in self.w.observed.containers.iter_mut().filter(alive).filter(|c| which(c)) {
            (c.state, c.exit_code, c.finished_at) = (ContainerState::Exited, code, Some(now));
        }
    }

    fn exit(&mut self, name: &str, code: i32) {
        self.end(|c| c.name == name && c.state == ContainerState::Running, code);
    }

    fn let_happen(&mut self) {
        while self.happenings.front().is_some_and(|(at, _)| *at <= self.w.facts.now) {
            let Some((_, what)) = self.happenings.pop_front() else { return };
            self.happen(what);
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Exit(name, code) => self.exit(name, code),
            Happening::Unhealthy(name) => {
                let running = self.w.observed.running().find(|c| c.name == name).map(|c| c.id.to_string());
                if let Some(id) = running {
                    self.w.unhealthy(&id);
                }
            }
            Happening::ImageChanges(name) => {
                self.images += 1;
                let image = format!("image:{}", self.images);
                let containers = &mut self.w.spec().containers;
                let changed = containers.iter_mut().find(|c| c.name == name).unwrap();
                changed.image = Some(image);
                self.forget(name);
                self.served.remove(&format!("crash of {name}"));
            }
            Happening::SandboxDies => {
                let ids: Vec<_> = self.w.observed.sandboxes.iter().map(|s| s.id.clone()).collect();
                ids.iter().for_each(|id| self.stop_sandbox(id));
            }
            Happening::ObjectsChange => {
                self.w.state.object_changed(Change::AnyObject);
                self.held = None;
                self.served.remove("quiet");
                self.held_key.retain(|_, (_, f)| !matches!(f, Fault::Config | Fault::Mount));
            }
            Happening::Resize(name, mib, restart) => {
                let spec = self.w.spec();
                let list = Some([("memory".to_owned(), Quantity(format!("{mib}Mi")))].into());
                let resized = spec.containers.iter_mut().find(|c| c.name == name).unwrap();
                resized.resources = Some(ResourceRequirements { limits: list, ..Default::default() });
                let restart_policy = if restart { "RestartContainer" } else { "NotRequired" }.to_owned();
                resized.resize_policy =
                    Some(vec![ContainerResizePolicy { resource_name: "memory".into(), restart_policy }]);
                *Arc::make_mut(&mut self.w.desired.pod).metadata.generation.get_or_insert(1) += 1;
                // Another try for whoever could not start with what it had.
                self.forget(name);
                self.forget("resize");
                self.served.remove(&format!("crash of {name}"));
            }
            Happening::AgentLosesFiles => {
                self.record = None;
                self.happen(Happening::AgentRestarts);
            }
            Happening::AgentRestarts => {
                let desired = &mut self.w.desired;
                Arc::make_mut(&mut desired.pod).status = Some((*self.w.state.previous_status).clone());
                self.w.state = PodState::new(Some(desired.clone()), &self.w.observed, Default::default());
                self.w.state.resume_resize(self.record.as_deref(), &self.w.observed);
                self.held = None;
                self.held_key.clear();
                self.served.clear();
            }
            Happening::Delete => {
                let meta = &mut Arc::make_mut(&mut self.w.desired.pod).metadata;
                meta.deletion_timestamp = Some(Time(self.w.facts.now));
                meta.deletion_grace_period_seconds = Some(5);
            }
            Happening::Vanish => self.vanished = true,
            Happening::Decide(directive) => self.w.directive = directive,
        }
    }
}

/// Nothing follows a sidecar into a sandbox before the sidecar has started.
fn check_sidecar(w: &World, plan: &Plan) {
    let sidecar = w.desired.container("i1").is_some_and(|c| c.restart_policy.is_some());
    let Some(sandbox) = w.observed.latest_sandbox().filter(|_| sidecar) else { return };
    let inside = || w.observed.containers.iter().filter(|c| c.sandbox_id == sandbox.id);
    let alone = inside().all(|c| c.name == "i1");
    let starting = w.starting_sidecars();
    let started = inside().any(|c| c.state == ContainerState::Running && !starting.contains(&c.id));
    for action in &plan.actions {
        if let Action::StartContainer { name, .. } = action {
            assert!(name == "i1" || !alone || started, "{name} is started before its sidecar");
        }
    }
}

fn rank(life: &Lifecycle) -> u8 {
    match life {
        Lifecycle::Syncing => 0,
        Lifecycle::Terminating { .. } => 1,
        Lifecycle::Terminated { .. } => 2,
    }
}
