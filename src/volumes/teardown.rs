//! Takes volumes away: what is mounted inside them first, then each volume through its own kind, as found on disk, then
//! whatever is still mounted for the pod. Everything is tried, whatever fails. Directories go with the pod's own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keelson_core::volumes::VolumeOutcome;
use keelson_host::dirs::PodDirs;
use keelson_host::{PathError, mountinfo, mounting};

use crate::error::TeardownError;
use crate::manager::VolumeManager;
use crate::plugin::{Mounted, VolumePlugin};

impl VolumeManager {
    /// Unmounts all that is mounted for a pod: its volumes, sub-paths, and what its containers have mounted inside.
    pub async fn teardown(&self, dirs: &PodDirs) -> Result<(), TeardownError> {
        let (found, mut failures) = self.reconstruct(dirs).await;
        let own: Vec<PathBuf> = found.iter().map(|(_, mounted)| mounted.path.clone()).collect();
        let inside = unmount(dirs, move |point| !own.iter().any(|path| path == point)).await;
        let any = inside != Ok(0);
        failures.extend(inside.err().unwrap_or_default());
        // What its own kind could not give back is not pulled from under it.
        let mut kept: Vec<PathBuf> = vec![];
        for (plugin, mounted) in found {
            let path = mounted.path.clone();
            if let Err(e) = plugin.release(mounted).await {
                failures.push(e.to_string());
                kept.push(path);
            }
        }
        if any {
            let rest = unmount(dirs, move |point| !kept.iter().any(|path| path == point)).await;
            failures.extend(rest.err().unwrap_or_default());
        }
        failures.sort();
        failures.dedup();
        if failures.is_empty() { Ok(()) } else { Err(TeardownError { uid: dirs.uid().clone(), failures }) }
    }

    /// Gives back volumes of a pod that goes on.
    pub(crate) async fn release_named(&self, dirs: &PodDirs, names: &[String]) -> Vec<VolumeOutcome> {
        let (found, mut failures) = self.reconstruct(dirs).await;
        let mut outcomes = vec![];
        for name in names {
            for (plugin, mounted) in found.iter().filter(|(_, m)| m.volume == *name) {
                let (path, parts) = (mounted.path.clone(), dirs.subpaths().join(name));
                let inside = move |point: &Path| {
                    point.starts_with(&parts) || (point != path && point.starts_with(&path))
                };
                failures.extend(unmount(dirs, inside).await.err().unwrap_or_default());
                failures.extend(plugin.release(mounted.clone()).await.err().map(|e| e.to_string()));
            }
            let volume = name.clone();
            outcomes.push(match std::mem::take(&mut failures) {
                none if none.is_empty() => VolumeOutcome::Released { volume },
                some => VolumeOutcome::Failed { volume, message: some.join("; ") },
            });
        }
        outcomes
    }

    /// The volumes in a pod's directory, each with its kind, and what could not be read there.
    pub(crate) async fn reconstruct(&self, dirs: &PodDirs) -> (Vec<Found>, Vec<String>) {
        let (plugins, dirs) = (self.plugins.clone(), dirs.clone());
        let read = move || {
            let (mut found, mut failures) = (vec![], vec![]);
            for plugin in plugins {
                match plugin.reconstruct(&dirs) {
                    Ok(volumes) => found.extend(volumes.into_iter().map(|mounted| (plugin.clone(), mounted))),
                    Err(e) => failures.push(e.to_string()),
                }
            }
            (found, failures)
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|e| (vec![], vec![e.to_string()]))
    }
}

/// A volume that was found on disk, and its kind.
pub(crate) type Found = (Arc<dyn VolumePlugin>, Mounted);

/// Unmounts what is mounted for a pod, innermost first, as far as it is `wanted`. Returns how many mounts the pod had.
async fn unmount(
    dirs: &PodDirs,
    wanted: impl Fn(&Path) -> bool + Send + 'static,
) -> Result<usize, Vec<String>> {
    let pod = dirs.path().to_owned();
    let work = move || {
        let mounts = mountinfo::mounts_under(&pod).map_err(|e| vec![e])?;
        let chosen = mounts.iter().filter(|m| wanted(&m.point));
        let failures: Vec<PathError> = chosen.filter_map(|m| mounting::unmount(&m.point).err()).collect();
        if failures.is_empty() { Ok(mounts.len()) } else { Err(failures) }
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|failures| failures.iter().map(ToString::to_string).collect()),
        Err(e) => Err(vec![e.to_string()]),
    }
}
