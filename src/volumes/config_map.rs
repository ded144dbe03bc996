//! configMap: the keys of a ConfigMap as files. Nothing in it is secret, so it lies on disk.

use k8s_openapi::api::core::v1::Volume;

use crate::plugin::{Prepare, Prepared, VolumeFuture, VolumePlugin};
use crate::written::{self, Medium};

pub(crate) struct ConfigMapVolume;

impl VolumePlugin for ConfigMapVolume {
    fn directory(&self) -> &'static str {
        "kubernetes.io~configmap"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.config_map.is_some()
    }

    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared> {
        written::prepare(self, order, Medium::Disk)
    }
}
