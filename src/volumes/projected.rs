//! projected: several sources in one directory. Tokens are among them, so it lies in memory and is due again when the first
//! of them is to be renewed.

use k8s_openapi::api::core::v1::Volume;

use crate::plugin::{Prepare, Prepared, VolumeFuture, VolumePlugin};
use crate::written::{self, Medium};

pub(crate) struct ProjectedVolume;

impl VolumePlugin for ProjectedVolume {
    fn directory(&self) -> &'static str {
        "kubernetes.io~projected"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.projected.is_some()
    }

    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared> {
        written::prepare(self, order, Medium::Memory)
    }
}
