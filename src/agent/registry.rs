//! One record for each pod of this node: what was asked for, how it stands, what runs of it. Written by the pod's worker,
//! read by whoever reports: the status writer, the node's API, the local socket, log rotation. Reading costs no call to
//! the runtime, and a record that was read stays as it was.

mod runtime_pod;
#[cfg(test)]
mod tests;
pub mod timelines;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use keelson_core::ids::PodUid;
use keelson_core::observed::ObservedPod;
use keelson_core::qos::QosClass;
use keelson_core::timeline::{Query, WhyReport, refused};
use keelson_core::view::{PodRow, REFUSED};
use tokio::sync::watch;

pub use runtime_pod::{RuntimeContainer, RuntimePod, RuntimeSandbox};
use timelines::Timelines;

#[derive(Clone, Default)]
pub struct Registry(Arc<Shared>);

/// Each part comes when it is known. Cloning shares all of them.
#[derive(Debug, Clone, Default)]
pub struct PodRecord {
    /// As its source asked for it last. `None` for a pod that no source knows.
    pub desired: Option<Arc<Pod>>,
    /// As it stands here; the apiserver may not have it yet.
    pub status: Option<Arc<PodStatus>>,
    /// What the runtime held of it when its worker last looked.
    pub running: Option<Arc<RuntimePod>>,
    /// Its row in the table of `keelson pods`.
    pub row: Option<Arc<PodRow>>,
}

#[derive(Default)]
struct Shared {
    pods: Mutex<BTreeMap<PodUid, PodRecord>>,
    /// Rows for manifests that are no pods.
    refused: Mutex<Vec<Arc<PodRow>>>,
    /// Counts changes, so that whoever sleeps through some of them wakes once.
    rows_version: watch::Sender<u64>,
    running_version: watch::Sender<u64>,
    timelines: Timelines,
}

impl Registry {
    /// How a pod stands now. Returns whether its status changed.
    pub fn publish(&self, uid: &PodUid, desired: &Arc<Pod>, status: Arc<PodStatus>, row: PodRow) -> bool {
        let (status_changed, row_changed) = {
            let mut pods = self.lock();
            let record = pods.entry(uid.clone()).or_default();
            record.desired = Some(desired.clone());
            (replace(&mut record.status, status), replace(&mut record.row, Arc::new(row)))
        };
        if row_changed {
            self.0.rows_version.send_modify(|v| *v += 1);
        }
        status_changed
    }

    /// What the runtime holds of a pod.
    pub fn observe(&self, pod: &ObservedPod, qos: QosClass) {
        let running = Arc::new(RuntimePod::of(pod, qos));
        let changed = replace(&mut self.lock().entry(pod.uid.clone()).or_default().running, running);
        if changed {
            self.0.running_version.send_modify(|v| *v += 1);
        }
    }

    /// Nothing of the pod is left on this node. Its timeline is remembered for a while.
    pub fn remove(&self, uid: &PodUid) {
        self.0.timelines.gone(uid);
        let Some(record) = self.lock().remove(uid) else { return };
        if record.row.is_some() {
            self.0.rows_version.send_modify(|v| *v += 1);
        }
        if record.running.is_some() {
            self.0.running_version.send_modify(|v| *v += 1);
        }
    }

    /// The records of pods' lives.
    pub fn timelines(&self) -> &Timelines {
        &self.0.timelines
    }

    /// Why a pod, here or gone, is as it is: for `keelson why`. The error says what is known.
    pub fn why(&self, query: &Query<'_>) -> Result<WhyReport, String> {
        let rows = self.rows();
        self.0.timelines.why(query, &rows).or_else(|unknown| {
            let file = rows.iter().find(|row| row.phase == REFUSED && row.name == query.pod);
            file.map(|row| refused(row, self.0.timelines.now())).ok_or(unknown)
        })
    }

    pub fn get(&self, uid: &PodUid) -> Option<PodRecord> {
        self.lock().get(uid).cloned()
    }

    /// Every pod that a source asked for.
    pub fn desired(&self) -> Vec<PodRecord> {
        self.lock().values().filter(|record| record.desired.is_some()).cloned().collect()
    }

    /// A pod that a source asked for, by its name. Of two, the one that is not being deleted.
    pub fn named(&self, namespace: &str, name: &str) -> Option<(PodUid, Arc<Pod>)> {
        let pods = self.lock();
        let wanted = pods.iter().filter_map(|(uid, record)| {
            let pod = record.desired.as_ref()?;
            let meta = &pod.metadata;
            let same = meta.namespace.as_deref() == Some(namespace) && meta.name.as_deref() == Some(name);
            same.then_some((uid, pod))
        });
        let found = wanted.min_by_key(|(_, pod)| pod.metadata.deletion_timestamp.is_some());
        found.map(|(uid, pod)| (uid.clone(), pod.clone()))
    }

    /// What the runtime holds of every pod.
    pub fn running(&self) -> Vec<Arc<RuntimePod>> {
        self.lock().values().filter_map(|record| record.running.clone()).collect()
    }

    /// The manifests that were refused, all of them.
    pub fn refuse(&self, rows: Vec<PodRow>) {
        let rows: Vec<Arc<PodRow>> = rows.into_iter().map(Arc::new).collect();
        let before = std::mem::replace(&mut *self.refused(), rows.clone());
        if before != rows {
            self.0.rows_version.send_modify(|v| *v += 1);
        }
    }

    /// Sorted by namespace and name, and after them the manifests that were refused.
    pub fn rows(&self) -> Vec<Arc<PodRow>> {
        let mut rows: Vec<_> = self.lock().values().filter_map(|record| record.row.clone()).collect();
        rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        rows.extend(self.refused().iter().cloned());
        rows
    }

    fn refused(&self) -> MutexGuard<'_, Vec<Arc<PodRow>>> {
        self.0.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whenever a row changed, appeared or went.
    pub fn row_changes(&self) -> watch::Receiver<u64> {
        self.0.rows_version.subscribe()
    }

    /// Wakes whenever something else runs.
    pub fn running_changes(&self) -> watch::Receiver<u64> {
        self.0.running_version.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PodUid, PodRecord>> {
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the new value differs. One that does not is dropped, so that everybody goes on sharing the old one.
fn replace<T: PartialEq>(slot: &mut Option<Arc<T>>, new: Arc<T>) -> bool {
    let changed = slot.as_ref() != Some(&new);
    if changed {
        *slot = Some(new);
    }
    changed
}
