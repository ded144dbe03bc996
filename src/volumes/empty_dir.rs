//! emptyDir: a directory that lives as long as its pod, on disk or in memory.

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Volume};
use keelson_core::resources::amount_of;
use keelson_core::volumes::{ChangePolicy, FsGroup};
use keelson_host::{dirs, mountinfo, mounting};

use crate::error::VolumeError;
use crate::ownership::{self, Interrupt};
use crate::plugin::{Mounted, Prepare, Prepared, VolumeFuture, VolumePlugin, interruptible};

pub(crate) struct EmptyDir;

const DIRECTORY: &str = "kubernetes.io~empty-dir";

impl VolumePlugin for EmptyDir {
    fn directory(&self) -> &'static str {
        DIRECTORY
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.empty_dir.is_some()
    }

    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared> {
        let mounted = self.mounted(&order.pod.dirs, &order.volume.name);
        interruptible(order.volume.name.clone(), move |interrupt| set_up(&order, mounted, interrupt))
    }
}

fn set_up(order: &Prepare, mounted: Mounted, interrupt: &Interrupt) -> Result<Prepared, VolumeError> {
    let source = order.volume.empty_dir.clone().unwrap_or_default();
    let (path, failed) = (&mounted.path, order.path_error());
    let in_memory = match source.medium.as_deref().unwrap_or_default() {
        "" => false,
        "Memory" => true,
        medium => {
            let problem = format!("medium {medium:?} is not supported; \"\" and \"Memory\" are");
            return Err(VolumeError::Invalid { volume: order.volume.name.clone(), problem });
        }
    };
    // From then on it is the pod's, which may have given it another mode: a kubelet leaves the same mark.
    let mark = order.pod.dirs.ready_mark(DIRECTORY, &order.volume.name);
    let there = if in_memory { mountinfo::is_mountpoint(path).map_err(&failed)? } else { path.is_dir() };
    if there && mark.is_file() {
        return Ok(mounted.into());
    }
    dirs::make(path, 0o777).map_err(&failed)?;
    if in_memory {
        mounting::ensure_tmpfs(path, size(order, &source)?, mounting::Writer::Pod).map_err(&failed)?;
    }
    let mode = if in_memory { 0o1777 } else { 0o777 };
    ownership::of_directory(path, mode, None).map_err(&failed)?;
    if let Some(group) = order.pod.fs_group() {
        // Something may lie in it already: it can be half-made.
        order.give_to_group(path, FsGroup { id: group, policy: ChangePolicy::Always }, interrupt)?;
    }
    dirs::make_mark(&mark).map_err(&failed)?;
    Ok(mounted.into())
}

/// The volume's own limit, the pod's, and what all pods together may take: the smallest one counts.
fn size(order: &Prepare, source: &EmptyDirVolumeSource) -> Result<Option<u64>, VolumeError> {
    let limit = source.size_limit.as_ref().map(amount_of).transpose().map_err(|e| VolumeError::Invalid {
        volume: order.volume.name.clone(),
        problem: format!("sizeLimit: {e}"),
    })?;
    let own = limit.and_then(|a| u64::try_from(a.value()).ok()).filter(|bytes| *bytes > 0);
    let all_pods = order.pod.node_allocatable.get("memory").and_then(|q| amount_of(q).ok());
    let all_pods = all_pods.and_then(|a| u64::try_from(a.value()).ok()).filter(|bytes| *bytes > 0);
    Ok([own, order.pod.memory_limit(), all_pods].into_iter().flatten().min())
}
