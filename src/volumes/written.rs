//! What the kinds that are made of files share: the agent writes them, all at once, into a directory of its own.

use keelson_host::{dirs, mounting};

use crate::plugin::{Prepare, Prepared, VolumeFuture, VolumePlugin, blocking};
use crate::{atomic, ownership};

/// Where the files lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    Disk,
    /// Secrets must not reach a disk; what is mixed with them neither.
    Memory,
}

pub(crate) fn prepare(
    kind: &impl VolumePlugin,
    order: Prepare,
    medium: Medium,
) -> VolumeFuture<'static, Prepared> {
    let mounted = kind.mounted(&order.pod.dirs, &order.volume.name);
    blocking(order.volume.name.clone(), move || {
        let payload = order.payload()?;
        let (path, fs_group, failed) = (&mounted.path, order.pod.fs_group(), order.path_error());
        dirs::make(path, 0o755).map_err(&failed)?;
        if medium == Medium::Memory {
            mounting::ensure_tmpfs(path, None, mounting::Writer::Agent).map_err(&failed)?;
        }
        let mode = if medium == Medium::Memory { 0o1777 } else { 0o777 };
        ownership::of_directory(path, mode, fs_group).map_err(&failed)?;
        atomic::write(path, &payload, fs_group).map_err(&failed)?;
        Ok(Prepared { refresh_at: order.gathered.renew_at, ..mounted.into() })
    })
}
