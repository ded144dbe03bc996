//! The table behind `keelson pods`: written by the pod workers, read over the local socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use keelson_core::ids::PodUid;
use keelson_core::view::PodRow;
use tokio::sync::watch;

#[derive(Clone)]
pub struct View {
    rows: Arc<Mutex<BTreeMap<PodUid, Shown>>>,
    version: Arc<watch::Sender<u64>>,
}

struct Shown {
    row: PodRow,
    /// None for one that nobody asks for any more.
    pod: Option<Arc<Pod>>,
}

impl Default for View {
    fn default() -> Self {
        Self { rows: Arc::default(), version: Arc::new(watch::Sender::new(0)) }
    }
}

impl View {
    /// Sorted by namespace and name.
    pub fn snapshot(&self) -> Vec<PodRow> {
        let mut rows: Vec<_> = self.lock().values().map(|shown| shown.row.clone()).collect();
        rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        rows
    }

    /// Wakes whenever a row changed, appeared or went.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The pods behind the rows, as they were ordered.
    pub fn pods(&self) -> Vec<(PodUid, Arc<Pod>)> {
        let shown = self.lock();
        shown.iter().filter_map(|(uid, shown)| Some((uid.clone(), shown.pod.clone()?))).collect()
    }

    /// A pod by its name. Of two, the one that is not on its way out.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<(PodUid, Arc<Pod>)> {
        let shown = self.lock();
        let named = shown.iter().filter(|(_, s)| s.row.namespace == namespace && s.row.name == name);
        let mut pods: Vec<_> = named.filter_map(|(uid, s)| Some((uid.clone(), s.pod.clone()?))).collect();
        pods.sort_by_key(|(_, pod)| pod.metadata.deletion_timestamp.is_some());
        pods.into_iter().next()
    }

    pub fn set(&self, uid: &PodUid, row: PodRow, pod: Option<Arc<Pod>>) {
        let old = self.lock().insert(uid.clone(), Shown { row: row.clone(), pod });
        if old.map(|shown| shown.row).as_ref() != Some(&row) {
            self.version.send_modify(|v| *v += 1);
        }
    }

    pub fn remove(&self, uid: &PodUid) {
        if self.lock().remove(uid).is_some() {
            self.version.send_modify(|v| *v += 1);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PodUid, Shown>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
