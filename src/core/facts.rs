//! What a pure decision may not fetch for itself: the time, probe verdicts, back-off, failures of earlier steps.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;

use crate::backoff::Backoff;
use crate::desired::{Lifecycle, TerminationReason};
use crate::ids::ContainerId;

/// Why a container (or the pod before its containers) is not running, as status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// ErrImagePull, ImagePullBackOff, CreateContainerConfigError, CrashLoopBackOff ...
    pub reason: String,
    pub message: String,
    /// Nothing is tried again before this.
    pub retry_at: Option<Timestamp>,
}

/// The verdicts of one container instance's probes. Without a probe of a kind the verdict is its neutral one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeVerdicts {
    pub started: bool,
    pub ready: bool,
    /// Liveness or startup failed for good: the message says which and how. The container is to be killed.
    pub unhealthy: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum VolumesState {
    #[default]
    Pending,
    Ready,
    /// In words, naming the volume.
    Failed(String),
}

/// How much of a terminated pod is gone already.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CleanUp {
    #[default]
    Pending,
    /// Sandbox stopped, volumes and cgroup gone.
    Released,
    /// The last word for this reason has been said; a completed pod that is deleted later needs another one.
    Finished(TerminationReason),
    /// Nothing is left on this machine.
    Gone,
}

#[derive(Debug, Clone)]
pub struct Facts {
    pub now: Timestamp,
    pub lifecycle: Lifecycle,
    pub clean_up: CleanUp,
    /// Keyed by container instance, so that a verdict never outlives what it judged.
    pub probes: BTreeMap<ContainerId, ProbeVerdicts>,
    /// Keyed by container name.
    pub waiting: BTreeMap<String, Waiting>,
    /// What each container that crashed is serving now, by container name.
    pub crash_backoff: BTreeMap<String, Backoff>,
    pub volumes: VolumesState,
    /// Why the last attempt at a sandbox failed.
    pub sandbox_failure: Option<Waiting>,
    /// The node's addresses, primary first.
    pub host_ips: Vec<IpAddr>,
    /// Termination messages read from disk, by instance.
    pub termination_messages: BTreeMap<ContainerId, String>,
    /// postStart hooks that have not returned yet: such a container runs but is not ready.
    pub hooks_running: Vec<ContainerId>,
    /// What the runtime calls itself (containerd, cri-o): the scheme of every containerID in a status.
    pub runtime_name: String,
    /// The runtime handler of this pod can mount recursively read-only.
    pub recursive_read_only: bool,
    /// The status computed last time, or the API's after a start. What the runtime has forgotten lives on from here.
    pub previous: PodStatus,
}
