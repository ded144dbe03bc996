//! From what was asked and what is there to what is to be done next.
//!
//! `advance` moves a pod along its life, `plan` lists the next actions. Both are pure: the worker gathers, calls them,
//! carries the actions out in order, stops at the first failure, observes and asks anew. Every action is idempotent
//! and a plan for a pod that is as it should be is empty, so it does not matter at which instant an agent dies.

mod container;
mod containers;
mod kill;
mod lifecycle;
mod reset;
mod sync;
mod terminate;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::allocation::Resize;
use crate::desired::Lifecycle;
use crate::facts::Facts;
use crate::ids::{ContainerId, SandboxId};
use crate::observed::ObservedPod;
use crate::pod::{PodState, Waiting};

pub(crate) use container::restarts_all_after;
pub use container::{ContainerKind, restarts_after};
pub use kill::{Kill, Restart};
pub(crate) use lifecycle::DEADLINE_EXCEEDED;
pub use lifecycle::advance;
pub(crate) use reset::{askers, may_restart_all};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    EnsureCgroup,
    MountVolumes,
    /// `attempt` counts the sandboxes that this pod has had.
    CreateSandbox {
        attempt: u32,
    },
    StopSandbox {
        id: SandboxId,
    },
    RemoveSandbox {
        id: SandboxId,
    },
    /// Pull by policy, create, start, postStart. `after` is the instance whose end counts towards the back-off.
    StartContainer {
        name: String,
        kind: ContainerKind,
        attempt: u32,
        after: Option<ContainerId>,
    },
    /// What runs, and the pod's own cgroup, get what was granted.
    Resize(Resize),
    /// All preStop hooks at once, then each its stop signal in its turn.
    KillContainers(Vec<Kill>),
    RemoveContainer {
        id: ContainerId,
    },
    /// Removed so that its pod starts over, with its log kept.
    ResetContainer {
        id: ContainerId,
    },
    UnmountVolumes,
    RemoveCgroup,
    /// The final status of the pod reaches the apiserver; for a deleted one, its object goes too.
    Finish,
    /// Directories and logs of a pod that nobody knows any more.
    RemoveDirectories,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedEvent {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
    pub container: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    pub actions: Vec<Action>,
    /// When to decide again although nothing has happened.
    pub requeue_at: Option<Timestamp>,
    pub events: Vec<PlannedEvent>,
    /// Containers that are held back, by name, and why.
    pub waiting: BTreeMap<String, Waiting>,
}

impl PlannedEvent {
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: false, reason, message: message.into(), container: None }
    }

    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(reason, message) }
    }

    /// About one container of the pod.
    #[must_use]
    pub fn of(self, container: &str) -> Self {
        Self { container: Some(container.to_owned()), ..self }
    }
}

impl Plan {
    fn requeue(&mut self, at: Timestamp) {
        self.requeue_at = Some(self.requeue_at.map_or(at, |t| t.min(at)));
    }
}

/// The next actions for a pod. One that no source knows and that nobody has ever described is planned for by what was
/// written into the runtime when its containers were created.
pub fn plan(state: &PodState, observed: &ObservedPod, facts: &Facts) -> Plan {
    match &state.lifecycle {
        Lifecycle::Syncing => sync::plan(state, observed, facts),
        Lifecycle::Terminating { deadline, .. } => terminate::stop(state, observed, facts.now, *deadline),
        Lifecycle::Terminated { reason } => terminate::clean_up(observed, reason, &state.clean_up),
    }
}
