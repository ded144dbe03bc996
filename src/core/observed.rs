//! What the runtime says is there. Everything that the agent needs to pick a pod up again after it was killed is in
//! these values, because it was written into the runtime as labels and annotations.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;

use crate::ids::{ContainerId, PodUid, SandboxId};

/// Everything in the runtime that carries one pod's uid. Newest first, both lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPod {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    pub sandboxes: Vec<ObservedSandbox>,
    pub containers: Vec<ObservedContainer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    Ready,
    NotReady,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedSandbox {
    pub id: SandboxId,
    pub attempt: u32,
    pub state: SandboxState,
    pub created_at: Timestamp,
    /// Primary first. Empty for a host-network pod and for a sandbox that is no longer ready.
    pub ips: Vec<IpAddr>,
    pub host_network: bool,
    pub runtime_handler: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    /// A state this agent does not know. Treated as neither running nor finished: it is killed before anything replaces it.
    Unknown,
}

/// One instance of a container. As wide as CRI's own status with the annotations that were written: what an agent needs to take
/// it over is all here, and nothing reads a part of it as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedContainer {
    pub id: ContainerId,
    pub sandbox_id: SandboxId,
    pub name: String,
    /// Equal to the restart count it was created with.
    pub attempt: u32,
    pub state: ContainerState,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i32,
    /// The runtime's reason and message for an exit, such as OOMKilled.
    pub reason: String,
    pub message: String,
    /// The image as the pod asked for it, and the id that it resolved to.
    pub image: String,
    pub image_id: String,
    /// The annotation io.kubernetes.container.hash, as written.
    pub hash: Option<String>,
    pub termination_message_path: Option<String>,
    pub termination_message_policy: Option<String>,
    /// Host path that is mounted at the termination message path.
    pub termination_message_host_path: Option<String>,
    pub log_path: String,
    /// The annotations io.kubernetes.pod.{termination,deletion}GracePeriod, for a pod whose object is gone.
    pub termination_grace_seconds: Option<i64>,
    pub deletion_grace_seconds: Option<i64>,
    /// The annotation io.kubernetes.container.preStopHandler (JSON of a LifecycleHandler), likewise.
    pub pre_stop: Option<String>,
    /// Effective resources as the runtime reports them, where it does.
    pub resources: Option<ObservedResources>,
    /// The user the process was started with, where the runtime reports it.
    pub user: Option<ObservedUser>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedResources {
    pub cpu_shares: i64,
    pub cpu_quota: i64,
    pub cpu_period: i64,
    pub memory_limit_bytes: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObservedUser {
    pub uid: i64,
    pub gid: i64,
    pub supplemental_groups: Vec<i64>,
}

impl ObservedPod {
    pub fn empty(uid: PodUid, namespace: &str, name: &str) -> Self {
        Self { uid, namespace: namespace.into(), name: name.into(), sandboxes: vec![], containers: vec![] }
    }

    /// The newest sandbox, ready or not.
    pub fn latest_sandbox(&self) -> Option<&ObservedSandbox> {
        self.sandboxes.iter().max_by_key(|s| (s.attempt, s.created_at))
    }

    /// The newest instance of a container.
    pub fn latest(&self, container: &str) -> Option<&ObservedContainer> {
        self.containers.iter().filter(|c| c.name == container).max_by_key(|c| (c.attempt, c.created_at))
    }

    pub fn running(&self) -> impl Iterator<Item = &ObservedContainer> {
        self.containers.iter().filter(|c| c.state == ContainerState::Running)
    }
}

impl ObservedContainer {
    /// Whether an instance that ended did not do what it was to do. One that ran out of memory has not, whatever its first
    /// process made of it.
    pub fn has_failed(&self) -> bool {
        self.exit_code != 0 || self.reason == "OOMKilled"
    }

    /// How long a finished instance was up.
    pub fn up_time(&self) -> Duration {
        match (self.started_at, self.finished_at) {
            (Some(s), Some(f)) => Duration::try_from(f.duration_since(s)).unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }
}
