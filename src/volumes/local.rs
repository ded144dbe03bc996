//! A persistent volume that is a directory of this machine: shown in the pod's directory, under the name of the persistent volume,
//! and as it was when the pod is gone.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::Volume;
use keelson_core::volumes::{Backing, ClaimedVolume};
use keelson_host::mounting::{self, BindOptions};
use keelson_host::{PathError, dirs, mountinfo};

use crate::error::VolumeError;
use crate::ownership::Interrupt;
use crate::plugin::{Mounted, Prepare, Prepared, VolumeFuture, VolumePlugin, interruptible};
use crate::stats::{Measure, VolumeStats};

pub(crate) struct LocalVolume;

const DIRECTORY: &str = "kubernetes.io~local-volume";

impl VolumePlugin for LocalVolume {
    fn directory(&self) -> &'static str {
        DIRECTORY
    }

    /// No volume of a pod names it: a claim leads to it.
    fn claims(&self, _: &Volume) -> bool {
        false
    }

    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared> {
        interruptible(order.volume.name.clone(), move |interrupt| {
            let Some(claimed) = order.gathered.claimed.clone() else {
                return Err(VolumeError::NoSource { volume: order.volume.name });
            };
            let mounted = Mounted {
                volume: claimed.name.clone(),
                path: order.pod.dirs.volume(DIRECTORY, &claimed.name),
            };
            set_up(&order, &claimed, &mounted, interrupt)?;
            Ok(mounted.into())
        })
    }

    /// It is neither the pod's own nor goes with it, and how full it is says the disk that it is on.
    fn stats(&self, _: Mounted, _: Measure) -> VolumeFuture<'_, Option<VolumeStats>> {
        Box::pin(async { Ok(None) })
    }
}

fn set_up(
    order: &Prepare,
    claimed: &ClaimedVolume,
    mounted: &Mounted,
    interrupt: &Interrupt,
) -> Result<(), VolumeError> {
    let failed = order.path_error();
    let invalid = |problem: String| VolumeError::Invalid { volume: order.volume.name.clone(), problem };
    let Backing::Local { path, mount_options } = &claimed.backing else {
        return Err(VolumeError::NoSource { volume: order.volume.name.clone() });
    };
    let source = Path::new(path);
    let what = format!("local.path {path:?} of persistentvolume {:?}", claimed.name);
    match fs::metadata(source) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            return Err(invalid(format!("{what} is no directory; mount what it is and name its directory")));
        }
        Err(e) => return Err(invalid(format!("{what} cannot be used: {e}"))),
    }
    let mut options = BindOptions::parse(mount_options)
        .map_err(|option| invalid(format!("mount option {option:?} of {what} is none of a bind mount")))?;
    options.read_only |= claimed.read_only;
    let others = is_used_by_others(order, &claimed.name).map_err(&failed)?;
    dirs::make(&mounted.path, 0o750).map_err(&failed)?;
    let fresh = mounting::ensure_bind(source, &mounted.path, options).map_err(&failed)?;
    match order.pod.ownership() {
        // Who came first has decided whose it is.
        Some(group) if fresh && !others && !options.read_only => {
            let done = order.give_to_group(&mounted.path, group, interrupt);
            // Begun anew the next time.
            done.inspect_err(|_| drop(mounting::unmount(&mounted.path)))
        }
        _ => Ok(()),
    }
}

/// Whether another pod has the same volume.
fn is_used_by_others(order: &Prepare, name: &str) -> Result<bool, PathError> {
    let own = order.pod.dirs.path();
    let Some(all) = own.parent() else { return Ok(false) };
    let mounts = mountinfo::mounts_under(all)?;
    let tail = Path::new("volumes").join(DIRECTORY).join(name);
    Ok(mounts.iter().any(|m| m.point.ends_with(&tail) && !m.point.starts_with(own)))
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
