//! What volumes hold. Walking a large one is the dearest thing here, so a size is remembered for a while.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use keelson_core::stats::Filesystem;
use keelson_host::stats::{filesystem, tree_usage};

/// Larger volumes are shown smaller than they are; counting further would hold up whoever asks.
const MOST_ENTRIES: usize = 1_000_000;

/// The kinds whose files the agent keeps.
const COUNTED: [&str; 5] = ["empty-dir", "configmap", "secret", "projected", "downward-api"];

/// Sizes of volumes that were asked for lately.
#[derive(Default)]
pub(super) struct Sizes(Mutex<Known>);

/// Bytes and inodes, and when they were counted.
type Known = HashMap<PathBuf, (Instant, (u64, u64))>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub name: String,
    pub fs: Filesystem,
    /// Lies on the node's own disk and goes with the pod.
    pub ephemeral: bool,
}

/// Those that a pod has on disk. `lasts` is how long a size may be believed.
pub(super) fn of_pod(volumes: &Path, root_device: Option<u64>, sizes: &Sizes, lasts: Duration) -> Vec<Found> {
    let mut found = Vec::new();
    for plugin in fs::read_dir(volumes).into_iter().flatten().flatten() {
        let name = plugin.file_name();
        if !name.to_str().and_then(|n| n.strip_prefix("kubernetes.io~")).is_some_and(|n| COUNTED.contains(&n))
        {
            continue;
        }
        for entry in fs::read_dir(plugin.path()).into_iter().flatten().flatten() {
            let (path, Ok(name)) = (entry.path(), entry.file_name().into_string()) else { continue };
            let Some(whole) = filesystem(&path) else { continue };
            let own = is_mount(&path, root_device);
            let fs = if own {
                // Its own filesystem knows what is in use.
                whole
            } else {
                match sizes.of(&path, lasts) {
                    Some((bytes, inodes)) => whole.with_used(Some(bytes), Some(inodes)),
                    None => continue,
                }
            };
            found.push(Found { name, fs, ephemeral: !own });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn is_mount(path: &Path, root_device: Option<u64>) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).is_ok_and(|found| root_device.is_some_and(|device| found.dev() != device))
}

impl Sizes {
    fn of(&self, path: &Path, lasts: Duration) -> Option<(u64, u64)> {
        let known = self.lock().get(path).copied();
        if let Some((at, size)) = known
            && at.elapsed() < lasts
        {
            return Some(size);
        }
        let size = tree_usage(path, MOST_ENTRIES)?;
        self.lock().insert(path.to_owned(), (Instant::now(), size));
        Some(size)
    }

    /// Forgets the volumes that are not there any more.
    pub fn tidy(&self) {
        self.lock().retain(|path, _| path.exists());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
