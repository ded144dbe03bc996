//! What a worker remembers of its pod between two rounds: what neither the runtime nor the apiserver knows.
//! Losing all of it, as a restart of the agent does, costs a few retries and nothing more.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodStatus};

use super::order::{Admitted, PendingResize};
use crate::allocation::Allocation;
use crate::backoff::{Backoff, CrashPolicy, Retry};
use crate::desired::{DesiredPod, Lifecycle, TerminationReason};
use crate::ids::ContainerId;
use crate::observed::{ObservedContainer, ObservedPod};
use crate::plan::{ContainerKind, Plan, Restart, restarts_after};
use crate::volumes::PodVolumes;

#[derive(Debug, Clone, Default)]
pub struct PodState {
    pub lifecycle: Lifecycle,
    pub clean_up: CleanUp,
    /// The last desired state that was known, also for a pod that has vanished from its source.
    pub desired: Option<DesiredPod>,
    pub admitted: Admitted,
    /// The status computed last time, or the API's after a start. What the runtime has forgotten lives on from here. Shared
    /// with whoever reports it: a node has hundreds of them.
    pub previous_status: Arc<PodStatus>,
    /// By container name.
    pub containers: BTreeMap<String, ContainerMemory>,
    pub instances: BTreeMap<ContainerId, InstanceMemory>,
    pub sandbox: SandboxMemory,
    pub volumes: PodVolumes,
    /// What the cgroups of its containers and its own have. `None`: there were none yet.
    pub actuated: Option<Arc<Allocation>>,
    pub resize: ResizeMemory,
    pub crash_policy: CrashPolicy,
    /// After an action failed whose failure has no place of its own in the status. Holds back all actions.
    pub retry: Retry,
}

/// What is remembered of a container, whichever instance of it runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerMemory {
    /// Why the last attempt to start it failed.
    pub waiting: Option<Waiting>,
    pub crash_backoff: Backoff,
    pub image_backoff: Backoff,
    /// The dead instance whose back-off was reported as an event.
    pub backoff_reported: Option<ContainerId>,
    /// The instance that was ended so that another one takes its place, until that one is there. The runtime may forget the
    /// ended one before.
    pub restart: Option<(ContainerId, Restart)>,
}

/// What is remembered of one instance of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InstanceMemory {
    /// Read from disk once it was dead.
    pub termination_message: Option<String>,
    /// Its postStart hook has not returned yet: it runs but is not ready.
    pub hook_running: bool,
    /// Its end was begun: the preStop hook does not run again.
    pub stop_begun: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxMemory {
    /// Why the last attempt at a sandbox failed.
    pub failure: Option<Waiting>,
    pub backoff: Backoff,
    /// How often in a row the runtime has said that the sandbox's name is taken.
    pub name_reserved: u32,
}

/// Where a resize stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResizeMemory {
    /// The node does not grant it.
    pub pending: Option<PendingResize>,
    /// The generation of the last one that it has granted.
    pub granted: Option<i64>,
    pub in_progress: Option<ResizeInProgress>,
    /// Some steps were taken and others were not: the pod's own cgroup may not have what its containers have.
    pub unfinished: bool,
    /// After a failure, nothing is tried before this.
    pub retry_at: Option<Timestamp>,
}

/// It was granted, and not all that runs has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResizeInProgress {
    pub generation: i64,
    pub error: Option<String>,
}

/// Why a container (or the pod before its containers) is not running, as status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// ErrImagePull, ImagePullBackOff, CreateContainerConfigError, CrashLoopBackOff ...
    pub reason: String,
    pub message: String,
    /// Nothing is tried again before this.
    pub retry_at: Option<Timestamp>,
}

/// How much of a terminated pod is gone already.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CleanUp {
    #[default]
    Pending,
    /// Sandbox stopped, volumes and cgroup gone.
    Released,
    /// The final status for this reason is reported; a completed pod that is deleted later needs another one.
    Finished(TerminationReason),
    /// Nothing is left on this machine.
    Gone,
}

/// What a shell reports for a process that the kernel has killed.
const OUT_OF_MEMORY: i32 = 137;
/// How often the runtime may claim that a sandbox's name is taken before another name is tried.
const RESERVED_PATIENCE: u32 = 3;

impl SandboxMemory {
    /// A name that stays reserved belongs to a call that the runtime has lost; another attempt has another name.
    pub fn attempt(&self, planned: u32) -> u32 {
        planned + self.name_reserved.saturating_sub(RESERVED_PATIENCE)
    }
}

impl PodState {
    /// For a pod that is new to its worker. What the runtime already holds of it resumes its back-off.
    pub fn new(desired: Option<DesiredPod>, found: &ObservedPod, crash_policy: CrashPolicy) -> Self {
        let previous_status =
            desired.as_ref().and_then(|d| d.pod.status.clone()).map(Arc::new).unwrap_or_default();
        let mut state = Self { desired, previous_status, crash_policy, ..Self::default() };
        state.resume_backoff(found);
        state.resume_restarts(found);
        state
    }

    pub fn waiting(&self, container: &str) -> Option<&Waiting> {
        self.containers.get(container).and_then(|c| c.waiting.as_ref())
    }

    pub fn hook_running(&self, id: &ContainerId) -> bool {
        self.instances.get(id).is_some_and(|i| i.hook_running)
    }

    pub fn termination_message(&self, id: &ContainerId) -> Option<&str> {
        self.instances.get(id).and_then(|i| i.termination_message.as_deref())
    }

    /// Whether a container is started again after this instance of it has ended.
    pub fn restarts(
        &self,
        spec: &PodSpec,
        container: &Container,
        kind: ContainerKind,
        ended: &ObservedContainer,
    ) -> bool {
        // What counts as a failure must not count as a success here.
        let exit_code = if kind == ContainerKind::Init && ended.exit_code == 0 && ended.has_failed() {
            OUT_OF_MEMORY
        } else {
            ended.exit_code
        };
        self.restart_ordered(&ended.id).is_some() || restarts_after(spec, container, kind, exit_code)
    }

    /// The agent has ended this instance for another one to take its place.
    pub fn restart_ordered(&self, id: &ContainerId) -> Option<Restart> {
        let ordered = self.containers.values().filter_map(|c| c.restart.as_ref());
        ordered.into_iter().find(|(ended, _)| ended == id).map(|(_, restart)| *restart)
    }

    /// A container was ended for another instance of it, which is not there yet.
    pub fn restart_is_due(&self, container: &str, observed: &ObservedPod) -> bool {
        let ordered = self.containers.get(container).and_then(|c| c.restart.as_ref());
        let newest = observed.latest(container);
        ordered.is_some_and(|(ended, _)| newest.is_none_or(|newest| newest.id == *ended))
    }

    /// Until when actions are held back, although there are some to carry out.
    pub fn held_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.retry.at().filter(|at| *at > now)
    }

    /// When to decide again although nothing has happened.
    pub fn wake_at(&self, plan: &Plan, now: Timestamp) -> Option<Timestamp> {
        [plan.requeue_at, self.volumes.next_review(), self.held_until(now)].into_iter().flatten().min()
    }

    /// Nobody asks for the status of a pod whose object is gone.
    pub fn is_reported(&self) -> bool {
        !matches!(
            self.clean_up,
            CleanUp::Gone | CleanUp::Finished(TerminationReason::Deleted | TerminationReason::Orphaned)
        )
    }
}
