//! What the runtime holds of a pod, as far as reports need it: enough to find logs and cgroups.

use jiff::Timestamp;
use keelson_core::ids::{ContainerId, PodUid, SandboxId};
use keelson_core::observed::{ContainerState, ObservedPod, SandboxState};
use keelson_core::qos::QosClass;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimePod {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    pub qos: QosClass,
    pub sandbox: Option<RuntimeSandbox>,
    /// Newest first, dead ones included.
    pub containers: Vec<RuntimeContainer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSandbox {
    pub id: SandboxId,
    pub created_at: Timestamp,
    pub ready: bool,
    pub host_network: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeContainer {
    pub id: ContainerId,
    pub name: String,
    pub state: ContainerState,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub image: String,
    /// Empty when the runtime named none that passed validation.
    pub log_path: String,
    /// The CPUs that it is held to, where the runtime says so.
    pub cpuset: Option<String>,
}

impl RuntimePod {
    pub fn of(pod: &ObservedPod, qos: QosClass) -> Self {
        let sandbox = pod.latest_sandbox().map(|s| RuntimeSandbox {
            id: s.id.clone(),
            created_at: s.created_at,
            ready: s.state == SandboxState::Ready,
            host_network: s.host_network,
        });
        let containers = pod.containers.iter().map(|c| RuntimeContainer {
            id: c.id.clone(),
            name: c.name.clone(),
            state: c.state,
            created_at: c.created_at,
            started_at: c.started_at,
            image: c.image.clone(),
            log_path: c.log_path.clone(),
            cpuset: c.resources.as_ref().map(|r| r.cpuset_cpus.clone()),
        });
        Self {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            qos,
            sandbox,
            containers: containers.collect(),
        }
    }

    pub fn container(&self, id: &ContainerId) -> Option<&RuntimeContainer> {
        self.containers.iter().find(|c| c.id == *id)
    }

    pub fn running(&self) -> impl Iterator<Item = &RuntimeContainer> {
        self.containers.iter().filter(|c| c.state == ContainerState::Running)
    }
}
