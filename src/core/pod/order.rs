//! What the node wants of a pod. The latest order is the only one that counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::admission::Rejection;
use crate::desired::DesiredPod;

#[derive(Debug, Clone)]
pub struct Order {
    /// `None`: no source knows the pod any more.
    pub desired: Option<DesiredPod>,
    pub directive: Directive,
    pub resize: ResizeOrder,
}

impl Order {
    /// For a pod that no source knows: it is taken down.
    pub fn vanished() -> Self {
        Self { desired: None, directive: Directive::default(), resize: ResizeOrder::default() }
    }
}

/// What the node has decided about a spec that asks for other resources than the pod was granted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResizeOrder {
    /// It is not granted, and why.
    pub pending: Option<PendingResize>,
    /// The generation of the last spec that was granted while the pod ran.
    pub granted: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingResize {
    pub reason: PendingReason,
    pub message: String,
    pub generation: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingReason {
    /// Not beside what is here now.
    Deferred,
    /// Never on this node as it is configured.
    Infeasible,
}

impl PendingReason {
    /// The reason of the condition.
    pub fn word(self) -> &'static str {
        match self {
            Self::Deferred => "Deferred",
            Self::Infeasible => "Infeasible",
        }
    }
}

/// What this node has decided about a pod that its source wants to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directive {
    Run(Admitted),
    /// The node does not take it: the pod fails with reason and message.
    Refuse(Rejection),
    /// The node took it and cannot keep it: its containers are stopped, then it fails with reason and message.
    Evict(Eviction),
}

impl Default for Directive {
    fn default() -> Self {
        Self::Run(Admitted::default())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Becomes status.reason and status.message.
    pub reason: String,
    pub message: String,
    /// Between SIGTERM and SIGKILL; less than a second is a second.
    pub grace: Duration,
}

/// What an admitted pod was promised, by container name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admitted {
    pub grants: BTreeMap<String, Grant>,
}

impl Admitted {
    /// A container that was promised nothing has an empty grant.
    pub fn grant(&self, container: &str) -> Grant {
        self.grants.get(container).cloned().unwrap_or_default()
    }

    /// The groups of all containers: the sandbox holds what any of them may share.
    pub fn groups(&self) -> Vec<i64> {
        let all: BTreeSet<i64> = self.grants.values().flat_map(|g| &g.groups).copied().collect();
        all.into_iter().collect()
    }
}

/// What one container gets beside what its spec spells out. Who allocates devices fills it in at admission.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grant {
    pub devices: Vec<Device>,
    /// Fully qualified names: vendor/class=name.
    pub cdi_devices: Vec<String>,
    /// Set after the pod's own variables, so that a promise cannot be talked away.
    pub env: Vec<(String, String)>,
    pub mounts: Vec<HostMount>,
    pub groups: Vec<i64>,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    pub host_path: String,
    pub container_path: String,
    /// Of r, w and m.
    pub permissions: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostMount {
    pub host_path: String,
    pub container_path: String,
    pub read_only: bool,
}
