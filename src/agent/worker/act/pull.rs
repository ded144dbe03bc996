//! The images that a container needs: its own, and those of the volumes that it mounts. All of them come in the same way, with
//! the pod's pull secrets, and the first that does not come is why the container waits.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use keelson_core::desired::DesiredPod;
use keelson_core::image::{of_volume, unknown_secrets};
use keelson_core::pod::StartFailure;
use keelson_core::timeline::{Note, Place, Step};
use keelson_core::volumes::{ImagePart, VolumeImage};
use keelson_cri::convert::MountedImage;
use keelson_cri::proto::PodSandboxConfig;

use super::volumes::Objects;
use crate::images::{PodIdentity, Present, Progress, Wanted};
use crate::registry::timelines::Timing;
use crate::worker::Worker;

/// What a container is made of, as the runtime knows it.
pub(super) struct Images {
    pub own: Present,
    /// By the names of the volumes.
    pub of_volumes: BTreeMap<String, MountedImage>,
}

/// Which image, and for whom.
struct Image<'a> {
    reference: &'a str,
    policy: &'a str,
    /// Whose events tell of it: the container's, or the pod's for a volume.
    container: Option<&'a str>,
}

/// What all pulls for one start share.
struct Pulls<'a> {
    desired: &'a DesiredPod,
    objects: &'a Objects,
    sandbox: &'a PodSandboxConfig,
    timing: &'a Timing,
    /// One of them was really fetched.
    any_fetched: bool,
}

impl Worker {
    pub(super) async fn images(
        &self,
        desired: &DesiredPod,
        container: &Container,
        objects: &Objects,
        sandbox: &PodSandboxConfig,
    ) -> Result<Images, StartFailure> {
        let known = |secret: &str| objects.secrets.contains_key(secret);
        self.report_events(unknown_secrets(&pull_secrets(desired), known).as_slice());
        let timing = self.recorder.begin(Step::Pull, Some(&container.name), Place::Registry);
        let mut pulls = Pulls { desired, objects, sandbox, timing: &timing, any_fetched: false };
        let all = async {
            let of_volumes = self.volume_images(container, &mut pulls).await?;
            let image = Image {
                reference: container.image.as_deref().unwrap_or_default(),
                policy: container.image_pull_policy.as_deref().unwrap_or("IfNotPresent"),
                container: Some(&container.name),
            };
            Ok(Images { own: self.image(image, &mut pulls).await?, of_volumes })
        };
        let found = all.await;
        timing.ended(&found);
        found
    }

    /// Each image once, however often the container mounts its volume.
    async fn volume_images(
        &self,
        container: &Container,
        pulls: &mut Pulls<'_>,
    ) -> Result<BTreeMap<String, MountedImage>, StartFailure> {
        let places = self.state.volumes.places();
        let mut found = BTreeMap::new();
        for mount in container.volume_mounts.iter().flatten() {
            let image = places.get(&mount.name).and_then(|place| place.image());
            let Some(VolumeImage { reference, pull_policy }) = image else { continue };
            let named = |failure: StartFailure| of_volume(&mount.name, reference, failure);
            let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
            let in_part = given(&mount.sub_path) || given(&mount.sub_path_expr);
            let part = if in_part { ImagePart::SubPath } else { ImagePart::Whole };
            self.node.state.check_mounts_images(part).map_err(|e| named(StartFailure::create(e)))?;
            if found.contains_key(&mount.name) {
                continue;
            }
            let wanted = Image { reference, policy: pull_policy, container: None };
            let present = self.image(wanted, pulls).await.map_err(named)?;
            let handler = self.observed.latest_sandbox().map(|s| s.runtime_handler.clone());
            let mounted = MountedImage {
                id: present.id,
                reference: reference.clone(),
                runtime_handler: handler.unwrap_or_default(),
                sub_path: None,
            };
            found.insert(mount.name.clone(), mounted);
        }
        Ok(found)
    }

    async fn image(&self, image: Image<'_>, pulls: &mut Pulls<'_>) -> Result<Present, StartFailure> {
        let Image { reference, policy, container } = image;
        let desired = pulls.desired;
        let secrets = pull_secrets(desired);
        let secrets = secrets.iter().filter_map(|name| pulls.objects.secrets.get(*name)).cloned();
        let wanted = Wanted {
            image: reference,
            policy,
            pod: PodIdentity {
                namespace: desired.namespace().to_owned(),
                name: desired.name().to_owned(),
                uid: desired.uid.clone(),
                service_account: desired.pod.spec.as_ref().and_then(|s| s.service_account_name.clone()),
                secrets: secrets.collect(),
            },
            sandbox: pulls.sandbox,
        };
        let timing = pulls.timing;
        let began = timing.so_far();
        let mut waiting = Duration::ZERO;
        let fetched = &mut pulls.any_fetched;
        let report = |progress: Progress| match progress {
            Progress::AlreadyPresent { checked } => {
                if !*fetched {
                    timing.note(Note::Present);
                    timing.moved(Place::Runtime);
                }
                let access = if checked { " and can be accessed by the pod" } else { "" };
                let message = format!("Container image {reference:?} already present on machine{access}");
                self.event(false, "Pulled", &message, container);
            }
            Progress::NoCredentials { provider, problem } => {
                let message = format!(
                    "Credential provider {provider:?} gave nothing for image {reference:?}: {problem}"
                );
                self.event(true, "FailedToRetrieveImagePullCredentials", &message, container);
            }
            Progress::Pulling => {
                waiting = timing.so_far().saturating_sub(began);
                *fetched = true;
                timing.moved(Place::Registry);
                self.event(false, "Pulling", &format!("Pulling image {reference:?}"), container);
            }
            Progress::Pulled { bytes } => {
                let waited = timing.so_far().saturating_sub(began);
                let took = waited.saturating_sub(waiting);
                timing.note(Note::Pulled { bytes, waiting });
                self.node.reports.metrics.starts.image_pulled(bytes, waited);
                let message = format!(
                    "Successfully pulled image {reference:?} in {took:.3?} ({waited:.3?} including waiting). Image size: {bytes} bytes."
                );
                self.event(false, "Pulled", &message, container);
            }
        };
        self.node.images.ensure(wanted, report).await.map_err(|failure| {
            let event = failure.event();
            self.report_events(&[match container {
                Some(name) => event.of(name),
                None => event,
            }]);
            failure.into()
        })
    }
}

fn pull_secrets(desired: &DesiredPod) -> Vec<&str> {
    let named = desired.pod.spec.as_ref().and_then(|s| s.image_pull_secrets.as_deref());
    named.unwrap_or_default().iter().map(|r| r.name.as_str()).collect()
}
