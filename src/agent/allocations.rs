//! The files that say what pods were granted and what their cgroups have: the kubelet's, so that either agent goes on from the
//! other's. Kept in memory; what has changed is written a moment later by `run`, however often it has changed meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keelson_core::allocation::{Allocation, decode, encode};
use keelson_core::ids::PodUid;
use keelson_kit::whole_file;
use tokio::sync::Notify;

pub const ALLOCATED: &str = "allocated_pods_state";
pub const ACTUATED: &str = "actuated_pods_state";

type Entries = BTreeMap<PodUid, Arc<Allocation>>;

pub struct Allocations {
    file: PathBuf,
    entries: Mutex<Entries>,
    changed: Notify,
}

impl Allocations {
    /// Goes on from what was written last. A file that cannot be believed is named once; what it held is found out from what runs.
    pub fn open(dir: &Path, name: &str) -> Self {
        let file = dir.join(name);
        let read = match fs::read_to_string(&file) {
            Ok(text) => decode(&text).map_err(|e| e.to_string()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Entries::new()),
            Err(e) => Err(e.to_string()),
        };
        let entries = read.unwrap_or_else(|why| {
            tracing::warn!(file = %file.display(), why, "what pods were granted will be found out from what runs");
            Entries::new()
        });
        Self { file, entries: Mutex::new(entries), changed: Notify::new() }
    }

    pub fn get(&self, uid: &PodUid) -> Option<Arc<Allocation>> {
        self.lock().get(uid).cloned()
    }

    pub fn set(&self, uid: &PodUid, allocation: &Arc<Allocation>) {
        let mut entries = self.lock();
        match entries.get_mut(uid) {
            Some(known) if Arc::ptr_eq(known, allocation) => return,
            Some(known) if known == allocation => {
                known.clone_from(allocation);
                return;
            }
            Some(known) => known.clone_from(allocation),
            None => drop(entries.insert(uid.clone(), allocation.clone())),
        }
        self.changed.notify_one();
    }

    /// Nothing of the pod is left.
    pub fn remove(&self, uid: &PodUid) {
        if self.lock().remove(uid).is_some() {
            self.changed.notify_one();
        }
    }

    pub fn keep_only(&self, here: impl Fn(&PodUid) -> bool) {
        let mut entries = self.lock();
        let before = entries.len();
        entries.retain(|uid, _| here(uid));
        if entries.len() != before {
            self.changed.notify_one();
        }
    }

    /// Writes what has changed, until dropped.
    pub async fn run(self: Arc<Self>) {
        let mut said = None;
        loop {
            self.changed.notified().await;
            let this = self.clone();
            let done = tokio::task::spawn_blocking(move || this.write()).await;
            let failed = done.map_err(io::Error::other).and_then(|done| done).err().map(|e| e.to_string());
            if failed != said
                && let Some(error) = &failed
            {
                tracing::warn!(file = %self.file.display(), error, "what pods were granted is not written down");
            }
            said = failed;
        }
    }

    /// What the next agent is to find.
    pub fn write(&self) -> io::Result<()> {
        let text = encode(&self.lock());
        whole_file::replace(&self.file, 0o600, |file| file.write_all(text.as_bytes()))
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(text: &str) -> PodUid {
        PodUid::try_from(text.to_owned()).unwrap()
    }

    #[tokio::test]
    async fn what_was_set_is_found_by_the_next_agent() {
        let dir = tempfile::tempdir().unwrap();
        let first = Arc::new(Allocations::open(dir.path(), ALLOCATED));
        first.set(&uid("a"), &Arc::new(Allocation::default()));
        first.set(&uid("b"), &Arc::new(Allocation::default()));
        first.remove(&uid("b"));
        first.write().unwrap();
        let next = Allocations::open(dir.path(), ALLOCATED);
        assert_eq!(next.get(&uid("a")), Some(Arc::new(Allocation::default())));
        assert_eq!(next.get(&uid("b")), None);
        next.keep_only(|_| false);
        assert_eq!(next.get(&uid("a")), None);
    }

    #[test]
    fn a_file_that_is_cut_counts_as_lost() {
        let dir = tempfile::tempdir().unwrap();
        let first = Allocations::open(dir.path(), ACTUATED);
        first.set(&uid("a"), &Arc::new(Allocation::default()));
        first.write().unwrap();
        let text = fs::read_to_string(dir.path().join(ACTUATED)).unwrap();
        fs::write(dir.path().join(ACTUATED), &text[..text.len() / 2]).unwrap();
        assert_eq!(Allocations::open(dir.path(), ACTUATED).get(&uid("a")), None);
    }
}
