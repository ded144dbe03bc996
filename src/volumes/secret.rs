//! secret: the keys of a Secret as files, in memory only.

use k8s_openapi::api::core::v1::Volume;

use crate::plugin::{Prepare, Prepared, VolumeFuture, VolumePlugin};
use crate::written::{self, Medium};

pub(crate) struct SecretVolume;

impl VolumePlugin for SecretVolume {
    fn directory(&self) -> &'static str {
        "kubernetes.io~secret"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.secret.is_some()
    }

    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared> {
        written::prepare(self, order, Medium::Memory)
    }
}
