//! emptyDir: a directory that lives as long as its pod, on disk, in memory or in huge pages.

use k8s_openapi::api::core::v1::Volume;
use keelson_core::volumes::{ChangePolicy, FsGroup, Medium, medium};
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
    let medium = medium(&order.pod.pod, &source, &order.pod.node_allocatable)
        .map_err(|problem| VolumeError::Invalid { volume: order.volume.name.clone(), problem })?;
    // From then on it is the pod's, which may have given it another mode: a kubelet leaves the same mark.
    let mark = order.pod.dirs.ready_mark(DIRECTORY, &order.volume.name);
    let there = match medium {
        Medium::Disk => path.is_dir(),
        Medium::Memory { .. } | Medium::HugePages { .. } => {
            mountinfo::is_mountpoint(path).map_err(&failed)?
        }
    };
    if there && mark.is_file() {
        return Ok(mounted.into());
    }
    dirs::make(path, 0o777).map_err(&failed)?;
    let mode = match medium {
        Medium::Disk => 0o777,
        Medium::Memory { size } => {
            mounting::ensure_tmpfs(path, size, mounting::Writer::Pod).map_err(&failed)?;
            0o1777
        }
        Medium::HugePages { page_bytes } => {
            mounting::ensure_hugetlbfs(path, page_bytes).map_err(&failed)?;
            0o777
        }
    };
    ownership::of_directory(path, mode, None).map_err(&failed)?;
    if let Some(group) = order.pod.fs_group() {
        // Something may lie in it already: it can be half-made.
        order.give_to_group(path, FsGroup { id: group, policy: ChangePolicy::Always }, interrupt)?;
    }
    dirs::make_mark(&mark).map_err(&failed)?;
    Ok(mounted.into())
}
