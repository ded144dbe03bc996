//! What runs here, as the pod workers last saw it: for whoever reads logs or measures. Written when a worker has looked,
//! so asking costs no call to the runtime.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use keelson_core::ids::{ContainerId, PodUid, SandboxId};
use keelson_core::observed::{ContainerState, ObservedPod, SandboxState};
use keelson_core::qos::QosClass;
use tokio::sync::watch;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRecord {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    pub qos: QosClass,
    pub sandbox: Option<SandboxRecord>,
    /// Newest first, dead ones included.
    pub containers: Vec<ContainerRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRecord {
    pub id: SandboxId,
    pub created_at: Timestamp,
    pub ready: bool,
    pub host_network: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRecord {
    pub id: ContainerId,
    pub name: String,
    pub state: ContainerState,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub image: String,
    /// Empty when the runtime named none that could be believed.
    pub log_path: String,
}

#[derive(Clone)]
pub struct Inventory {
    pods: Arc<Mutex<BTreeMap<PodUid, Arc<PodRecord>>>>,
    version: Arc<watch::Sender<u64>>,
}

impl Default for Inventory {
    fn default() -> Self {
        Self { pods: Arc::default(), version: Arc::new(watch::Sender::new(0)) }
    }
}

impl Inventory {
    pub fn set(&self, pod: &ObservedPod, qos: QosClass) {
        let record = Arc::new(record(pod, qos));
        let old = self.lock().insert(pod.uid.clone(), record.clone());
        if old != Some(record) {
            self.version.send_modify(|v| *v += 1);
        }
    }

    pub fn remove(&self, uid: &PodUid) {
        if self.lock().remove(uid).is_some() {
            self.version.send_modify(|v| *v += 1);
        }
    }

    pub fn all(&self) -> Vec<Arc<PodRecord>> {
        self.lock().values().cloned().collect()
    }

    pub fn get(&self, uid: &PodUid) -> Option<Arc<PodRecord>> {
        self.lock().get(uid).cloned()
    }

    /// Wakes whenever a record changed, appeared or went.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PodUid, Arc<PodRecord>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PodRecord {
    pub fn container(&self, id: &ContainerId) -> Option<&ContainerRecord> {
        self.containers.iter().find(|c| c.id == *id)
    }

    pub fn running(&self) -> impl Iterator<Item = &ContainerRecord> {
        self.containers.iter().filter(|c| c.state == ContainerState::Running)
    }
}

fn record(pod: &ObservedPod, qos: QosClass) -> PodRecord {
    PodRecord {
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        qos,
        sandbox: pod.latest_sandbox().map(|s| SandboxRecord {
            id: s.id.clone(),
            created_at: s.created_at,
            ready: s.state == SandboxState::Ready,
            host_network: s.host_network,
        }),
        containers: pod
            .containers
            .iter()
            .map(|c| ContainerRecord {
                id: c.id.clone(),
                name: c.name.clone(),
                state: c.state,
                created_at: c.created_at,
                started_at: c.started_at,
                image: c.image.clone(),
                log_path: c.log_path.clone(),
            })
            .collect(),
    }
}
