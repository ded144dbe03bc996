//! What was asked for: a pod from one of its sources, and how far along its life it is.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use crate::ids::PodUid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodSource {
    /// Bound to this node by the apiserver.
    Api,
    /// A manifest on this machine; the apiserver only ever sees its mirror.
    Static,
}

/// A pod that this node is to run. `pod` has all defaults filled in; `pod.status` is what the apiserver has.
#[derive(Debug, Clone)]
pub struct DesiredPod {
    pub uid: PodUid,
    pub source: PodSource,
    pub pod: Arc<Pod>,
}

impl DesiredPod {
    pub fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or("default")
    }
    pub fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }
    /// A main or an init container.
    pub fn container(&self, name: &str) -> Option<&Container> {
        let spec = self.pod.spec.as_ref()?;
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
    }
    pub fn volumes(&self) -> &[Volume] {
        self.pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default()
    }
    /// How long its containers have between SIGTERM and SIGKILL: at least a second.
    pub fn grace(&self) -> SignedDuration {
        let seconds = self.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        SignedDuration::from_secs(seconds.unwrap_or(30).max(1))
    }
}

/// Why a pod is being taken down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminationReason {
    /// The API object carries a deletion timestamp, or the manifest is gone.
    Deleted,
    /// The object vanished without a graceful deletion (force delete, or deleted while the agent was away).
    Orphaned,
    /// The node does not take it: it was never begun.
    Refused { reason: String, message: String },
    /// The node decided so, by eviction or an expired deadline: reason and message become the pod's status
    /// (Evicted, DeadlineExceeded, Preempting ...).
    Evicted { reason: String, message: String },
    /// Every container finished and none is to be restarted.
    Completed,
}

/// A pod's life on this node. It only ever moves downwards in this list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Lifecycle {
    #[default]
    Syncing,
    /// `deadline` is when the last SIGTERM turns into SIGKILL; it may move closer, never away.
    Terminating { reason: TerminationReason, deadline: Timestamp },
    /// No process is left; volumes and cgroups go, then the API object.
    Terminated { reason: TerminationReason },
}

impl Lifecycle {
    pub fn is_syncing(&self) -> bool {
        matches!(self, Self::Syncing)
    }

    /// Why the pod ends, once it does.
    pub fn end(&self) -> Option<&TerminationReason> {
        match self {
            Self::Syncing => None,
            Self::Terminating { reason, .. } | Self::Terminated { reason } => Some(reason),
        }
    }
}
