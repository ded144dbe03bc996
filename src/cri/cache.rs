//! Caches what is known about sandboxes and containers whose state cannot change without the list showing it.
//!
//! A list says of each entry which state it is in; everything else needs a call per entry. While an entry is in one of
//! the lasting states, that call would answer the same again, so its answer is kept until the list shows another
//! state or does not have the entry any more.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use keelson_core::ids::{ContainerId, PodUid};
use keelson_core::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox, SandboxState};

#[derive(Default)]
pub(crate) struct StatusCache(Mutex<HashMap<PodUid, PodStatuses>>);

#[derive(Default)]
struct PodStatuses {
    sandboxes: HashMap<String, ObservedSandbox>,
    containers: HashMap<String, ObservedContainer>,
}

impl StatusCache {
    pub fn sandbox(&self, uid: &PodUid, id: &str, state: SandboxState) -> Option<ObservedSandbox> {
        self.lock().get(uid)?.sandboxes.get(id).filter(|known| known.state == state).cloned()
    }

    pub fn container(&self, uid: &PodUid, id: &str, state: ContainerState) -> Option<ObservedContainer> {
        self.lock().get(uid)?.containers.get(id).filter(|known| known.state == state).cloned()
    }

    pub fn learn_sandbox(&self, uid: &PodUid, seen: &ObservedSandbox) {
        // A ready sandbox without an address may still be getting one.
        let lasting = seen.state == SandboxState::NotReady || seen.host_network || !seen.ips.is_empty();
        if lasting {
            let mut known = self.lock();
            known.entry(uid.clone()).or_default().sandboxes.insert(seen.id.as_str().into(), seen.clone());
        }
    }

    pub fn learn_container(&self, uid: &PodUid, seen: &ObservedContainer) {
        if matches!(seen.state, ContainerState::Running | ContainerState::Exited) {
            let mut known = self.lock();
            known.entry(uid.clone()).or_default().containers.insert(seen.id.as_str().into(), seen.clone());
        }
    }

    pub fn forget_container(&self, id: &ContainerId) {
        for known in self.lock().values_mut() {
            known.containers.remove(id.as_str());
        }
    }

    /// Drops what a full observation of the pod did not find.
    pub fn keep_only(&self, pod: &ObservedPod) {
        let mut all = self.lock();
        if pod.sandboxes.is_empty() && pod.containers.is_empty() {
            all.remove(&pod.uid);
        } else if let Some(known) = all.get_mut(&pod.uid) {
            known.sandboxes.retain(|id, _| pod.sandboxes.iter().any(|seen| seen.id.as_str() == id));
            known.containers.retain(|id, _| pod.containers.iter().any(|seen| seen.id.as_str() == id));
        }
    }

    /// Drops pods that a full observation of the runtime did not find.
    pub fn keep_pods(&self, exists: impl Fn(&PodUid) -> bool) {
        self.lock().retain(|uid, _| exists(uid));
    }

    /// Every update leaves the map whole, so a panic elsewhere while it was held is no reason to distrust it.
    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, PodStatuses>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
