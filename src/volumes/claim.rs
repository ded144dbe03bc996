//! persistentVolumeClaim and ephemeral: what lies behind a claim, by the kind of its persistent volume.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Volume;
use keelson_core::volumes::Backing;
use keelson_host::PathError;
use keelson_host::dirs::PodDirs;

use crate::error::VolumeError;
use crate::host_path::HostPath;
use crate::local::LocalVolume;
use crate::plugin::{Mounted, Prepare, Prepared, VolumeFuture, VolumePlugin};
use crate::stats::{Measure, VolumeStats};

/// Has a directory under the name of its persistent volume's kind, or none: each kind finds and gives back its own.
pub(crate) struct ClaimVolume {
    pub host_path: Arc<HostPath>,
    pub local: Arc<LocalVolume>,
}

impl VolumePlugin for ClaimVolume {
    fn directory(&self) -> &'static str {
        "kubernetes.io~persistent-volume-claim"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    }

    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared> {
        let Some(claimed) = order.gathered.claimed.clone() else {
            let volume = order.volume.name;
            return Box::pin(async { Err(VolumeError::NoSource { volume }) });
        };
        match claimed.backing.clone() {
            Backing::HostPath(source) => {
                let volume =
                    Volume { name: order.volume.name.clone(), host_path: Some(source), ..Volume::default() };
                self.host_path.prepare(Prepare { volume, ..order })
            }
            Backing::Local { .. } => self.local.prepare(order),
        }
    }

    fn reconstruct(&self, _: &PodDirs) -> Result<Vec<Mounted>, PathError> {
        Ok(vec![])
    }

    fn release(&self, _: Mounted) -> VolumeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn stats(&self, _: Mounted, _: Measure) -> VolumeFuture<'_, Option<VolumeStats>> {
        Box::pin(async { Ok(None) })
    }
}
