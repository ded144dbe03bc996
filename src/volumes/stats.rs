//! What volumes hold. Walking a large one is the dearest thing here, so a size is kept for a while.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keelson_core::stats::Filesystem;
use keelson_host::dirs::PodDirs;
use keelson_host::stats::{filesystem, tree_usage};

use crate::manager::VolumeManager;
use crate::plugin::Mounted;

/// Larger volumes are shown smaller than they are; counting further would hold up whoever asks.
const MOST_ENTRIES: u64 = 1_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeStats {
    pub volume: String,
    pub fs: Filesystem,
    /// Lies on the node's own disk and goes with the pod.
    pub ephemeral: bool,
}

/// How volumes are measured in one round.
#[derive(Debug, Clone)]
pub struct Measure {
    sizes: Arc<Sizes>,
    /// The device of the node's own disk.
    root_device: Option<u64>,
    /// How long a size may be trusted.
    lasts: Duration,
}

/// Bytes and inodes of volumes that were asked for lately, and when they were counted.
#[derive(Debug, Default)]
pub(crate) struct Sizes(Mutex<HashMap<PathBuf, Counted>>);

#[derive(Debug, Clone, Copy)]
struct Counted {
    at: Instant,
    size: (u64, u64),
}

impl VolumeManager {
    /// A measure for volumes under `root`, the agent's own directory.
    pub fn measure(&self, root: &Path, lasts: Duration) -> Measure {
        let root_device = std::fs::metadata(root).ok().map(|m| m.dev());
        Measure { sizes: self.sizes.clone(), root_device, lasts }
    }

    /// The volumes that a pod has on disk, by name.
    pub async fn stats(&self, dirs: &PodDirs, measure: &Measure) -> Vec<VolumeStats> {
        let mut all = vec![];
        // What cannot be listed is left out, as is what cannot be measured.
        let (found, _) = self.reconstruct(dirs).await;
        for (plugin, mounted) in found {
            match plugin.stats(mounted, measure.clone()).await {
                Ok(stats) => all.extend(stats),
                Err(e) => tracing::debug!(error = %e, "a volume cannot be measured"),
            }
        }
        all.sort_by(|a, b| a.volume.cmp(&b.volume));
        all
    }

    /// Forgets the sizes of volumes that are not there any more.
    pub fn forget_old_sizes(&self) {
        self.sizes.lock().retain(|path, _| path.exists());
    }
}

impl Measure {
    /// For kinds that lie in the pod's directory. Blocks.
    pub fn local(&self, mounted: &Mounted) -> Option<VolumeStats> {
        let whole = filesystem(&mounted.path)?;
        let own = self.has_own_filesystem(&mounted.path);
        let fs = if own {
            // Its own filesystem knows what is in use.
            whole
        } else {
            let (bytes, inodes) = self.sizes.of(&mounted.path, self.lasts)?;
            whole.with_used(Some(bytes), Some(inodes))
        };
        Some(VolumeStats { volume: mounted.volume.clone(), fs, ephemeral: !own })
    }

    fn has_own_filesystem(&self, path: &Path) -> bool {
        let found = std::fs::symlink_metadata(path);
        found.is_ok_and(|found| self.root_device.is_some_and(|device| found.dev() != device))
    }
}

impl Sizes {
    fn of(&self, path: &Path, lasts: Duration) -> Option<(u64, u64)> {
        let known = self.lock().get(path).copied();
        if let Some(known) = known.filter(|known| known.at.elapsed() < lasts) {
            return Some(known.size);
        }
        let size = tree_usage(path, MOST_ENTRIES)?;
        self.lock().insert(path.to_owned(), Counted { at: Instant::now(), size });
        Some(size)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Counted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
