//! The table behind `keelson pods`: written by the pod workers, read over the local socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use keelson_core::ids::PodUid;
use keelson_core::view::PodRow;
use tokio::sync::watch;

#[derive(Clone)]
pub struct View {
    rows: Arc<Mutex<BTreeMap<PodUid, PodRow>>>,
    version: Arc<watch::Sender<u64>>,
}

impl Default for View {
    fn default() -> Self {
        Self { rows: Arc::default(), version: Arc::new(watch::Sender::new(0)) }
    }
}

impl View {
    /// Sorted by namespace and name.
    pub fn snapshot(&self) -> Vec<PodRow> {
        let mut rows: Vec<_> = self.lock().values().cloned().collect();
        rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        rows
    }

    /// Wakes whenever a row changed, appeared or went.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub fn set(&self, uid: &PodUid, row: PodRow) {
        let old = self.lock().insert(uid.clone(), row.clone());
        if old.as_ref() != Some(&row) {
            self.version.send_modify(|v| *v += 1);
        }
    }

    pub fn remove(&self, uid: &PodUid) {
        if self.lock().remove(uid).is_some() {
            self.version.send_modify(|v| *v += 1);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PodUid, PodRow>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
