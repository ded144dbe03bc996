//! image: the files of an image, which the runtime mounts by itself. Nothing is set up on the host. The image is pulled for each
//! container that mounts it, so that what is wrong with it is that container's waiting reason.

use k8s_openapi::api::core::v1::Volume;
use keelson_core::volumes::{VolumeImage, VolumePlace};
use keelson_host::PathError;
use keelson_host::dirs::PodDirs;

use crate::error::VolumeError;
use crate::plugin::{Mounted, Prepare, Prepared, VolumeFuture, VolumePlugin};
use crate::stats::{Measure, VolumeStats};

pub(crate) struct ImageVolume;

impl VolumePlugin for ImageVolume {
    fn directory(&self) -> &'static str {
        "kubernetes.io~image"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.image.is_some()
    }

    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared> {
        Box::pin(async move {
            let volume = order.volume.name.clone();
            match VolumeImage::of(&order.volume) {
                Some(Ok(image)) => Ok(Prepared { place: VolumePlace::Image(image), refresh_at: None }),
                Some(Err(problem)) => Err(VolumeError::Invalid { volume, problem }),
                None => Err(VolumeError::NoSource { volume }),
            }
        })
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
