//! From what was asked and what is there to what is to be done next.
//!
//! `advance` moves a pod along its life, `plan` lists the next actions. Both are pure: the worker gathers, calls them,
//! carries the actions out in order, stops at the first failure, looks again and asks anew. Every action is idempotent
//! and a plan for a pod that is as it should be is empty, so it does not matter at which instant an agent dies.

mod container;
mod lifecycle;
mod sync;
mod terminate;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::desired::{DesiredPod, Lifecycle};
use crate::facts::{Facts, Waiting};
use crate::ids::{ContainerId, SandboxId};
use crate::observed::ObservedPod;

pub use container::{ContainerKind, restarts_after};
pub use lifecycle::advance;

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
    /// Pull by policy, create, start, postStart. `after` is the instance that it replaces.
    StartContainer {
        name: String,
        kind: ContainerKind,
        attempt: u32,
        after: Option<ContainerId>,
    },
    /// At the same time, each with its own preStop and grace.
    KillContainers(Vec<Kill>),
    RemoveContainer {
        id: ContainerId,
    },
    UnmountVolumes,
    RemoveCgroup,
    /// The last word about the pod reaches the apiserver; for a deleted one, its object goes too.
    Finish,
    /// Directories and logs of a pod that nobody knows any more.
    RemoveDirectories,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    pub id: ContainerId,
    pub name: String,
    pub grace_seconds: i64,
    /// What the Killing event says.
    pub message: String,
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
    /// When to look again although nothing has happened.
    pub requeue_at: Option<Timestamp>,
    pub events: Vec<PlannedEvent>,
    /// Containers that are held back, by name, and why.
    pub waiting: BTreeMap<String, Waiting>,
}

impl Plan {
    fn requeue(&mut self, at: Timestamp) {
        self.requeue_at = Some(self.requeue_at.map_or(at, |t| t.min(at)));
    }
}

pub fn plan(desired: &DesiredPod, observed: &ObservedPod, facts: &Facts) -> Plan {
    match &facts.lifecycle {
        Lifecycle::Syncing => sync::plan(desired, observed, facts),
        Lifecycle::Terminating { deadline, .. } => terminate::stop(Some(desired), observed, facts, *deadline),
        Lifecycle::Terminated { reason } => terminate::clean_up(observed, reason, facts),
    }
}

/// For what the runtime still holds of a pod that no source knows: there is no spec to go by, only what was written
/// into the runtime when its containers were created.
pub fn plan_orphan(observed: &ObservedPod, facts: &Facts) -> Plan {
    match &facts.lifecycle {
        Lifecycle::Syncing => Plan::default(),
        Lifecycle::Terminating { deadline, .. } => terminate::stop(None, observed, facts, *deadline),
        Lifecycle::Terminated { reason } => terminate::clean_up(observed, reason, facts),
    }
}
