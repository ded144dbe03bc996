//! downwardAPI: fields of the pod itself as files. Its annotations may be confidential, so they lie in memory.

use k8s_openapi::api::core::v1::Volume;

use crate::plugin::{Prepare, Prepared, VolumeFuture, VolumePlugin};
use crate::written::{self, Medium};

pub(crate) struct DownwardApiVolume;

impl VolumePlugin for DownwardApiVolume {
    fn directory(&self) -> &'static str {
        "kubernetes.io~downward-api"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.downward_api.is_some()
    }

    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared> {
        written::prepare(self, order, Medium::Memory)
    }
}
