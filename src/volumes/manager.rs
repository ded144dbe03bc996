//! Finds the plugin that a volume belongs to and carries out what was planned for a pod's volumes, one after the other.
//! The manager keeps no state of a pod: that is `keelson_core::volumes::PodVolumes`, which takes in the outcomes.

use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::Volume;
use keelson_core::volumes::{Needs, VolumeOutcome, VolumePlan, sources};
use keelson_host::dirs::PodDirs;

use crate::claim::ClaimVolume;
use crate::config_map::ConfigMapVolume;
use crate::downward_api::DownwardApiVolume;
use crate::empty_dir::EmptyDir;
use crate::error::VolumeError;
use crate::host_path::HostPath;
use crate::image::ImageVolume;
use crate::local::LocalVolume;
use crate::plugin::{Gathered, PodSetup, Prepare, Prepared, VolumePlugin};
use crate::projected::ProjectedVolume;
use crate::secret::SecretVolume;
use crate::stats::Sizes;

/// Fetches what a volume needs. What does not exist is left out; an error is a sentence that names the volume.
pub trait Gather: Sync {
    fn gather<'a>(&'a self, volume: &'a str, needs: Needs) -> BoxFuture<'a, Result<Gathered, String>>;
}

pub struct VolumeManager {
    pub(crate) plugins: Vec<Arc<dyn VolumePlugin>>,
    pub(crate) sizes: Arc<Sizes>,
}

impl Default for VolumeManager {
    fn default() -> Self {
        Self::new()
    }
}

impl VolumeManager {
    /// With every kind that there is. The first that claims a volume has it.
    pub fn new() -> Self {
        let (host_path, local) = (Arc::new(HostPath::default()), Arc::new(LocalVolume));
        let claim = ClaimVolume { host_path: host_path.clone(), local: local.clone() };
        let plugins: Vec<Arc<dyn VolumePlugin>> = vec![
            Arc::new(EmptyDir),
            host_path,
            Arc::new(claim),
            local,
            Arc::new(ConfigMapVolume),
            Arc::new(SecretVolume),
            Arc::new(DownwardApiVolume),
            Arc::new(ProjectedVolume),
            Arc::new(ImageVolume),
        ];
        Self { plugins, sizes: Arc::default() }
    }

    /// Does what is planned. A volume that fails does not keep the next one from being tried.
    pub async fn carry_out(
        &self,
        plan: &VolumePlan,
        pod: &Arc<PodSetup>,
        source: &impl Gather,
    ) -> Vec<VolumeOutcome> {
        let mut outcomes = vec![];
        if plan.directories {
            outcomes.push(make_directories(&pod.dirs).await);
            if outcomes.iter().any(|o| o.failure().is_some()) {
                return outcomes;
            }
        }
        if !plan.release.is_empty() {
            outcomes.extend(self.release_named(&pod.dirs, &plan.release).await);
        }
        let volumes = pod.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let planned: Vec<&Volume> = volumes.filter(|v| plan.prepares(&v.name)).collect();
        // At the same time: while the server is away, each takes until its deadline.
        let gathered = join_all(planned.iter().map(|volume| self.gather(volume, source))).await;
        for (volume, gathered) in planned.into_iter().zip(gathered) {
            outcomes.push(outcome(&volume.name, self.prepare(volume, pod, gathered).await));
        }
        outcomes
    }

    async fn gather(
        &self,
        volume: &Volume,
        source: &impl Gather,
    ) -> Result<(&dyn VolumePlugin, Gathered), VolumeError> {
        let plugin = self.plugin(volume)?;
        let needs = plugin.needs(volume);
        if needs == Needs::default() {
            return Ok((plugin, Gathered::default()));
        }
        let gathered = source.gather(&volume.name, needs).await.map_err(VolumeError::Gather)?;
        Ok((plugin, gathered))
    }

    async fn prepare(
        &self,
        volume: &Volume,
        pod: &Arc<PodSetup>,
        gathered: Result<(&dyn VolumePlugin, Gathered), VolumeError>,
    ) -> Result<Prepared, VolumeError> {
        let (plugin, gathered) = gathered?;
        check_name(volume)?;
        plugin.prepare(Prepare { pod: pod.clone(), volume: volume.clone(), gathered }).await
    }

    /// Whose a volume is, or why it cannot be set up.
    fn plugin(&self, volume: &Volume) -> Result<&dyn VolumePlugin, VolumeError> {
        if let Some(plugin) = self.plugins.iter().find(|p| p.claims(volume)) {
            return Ok(&**plugin);
        }
        let name = volume.name.clone();
        if volume.git_repo.is_some() {
            return Err(VolumeError::GitRepo { volume: name });
        }
        Err(match sources(volume).into_iter().next() {
            Some(kind) => VolumeError::Unsupported { volume: name, kind },
            None => VolumeError::NoSource { volume: name },
        })
    }
}

fn outcome(volume: &str, prepared: Result<Prepared, VolumeError>) -> VolumeOutcome {
    let volume = volume.to_owned();
    match prepared {
        Ok(Prepared { place, refresh_at }) => VolumeOutcome::Prepared { volume, place, refresh_at },
        Err(e) => VolumeOutcome::Failed { volume, message: e.to_string() },
    }
}

/// The name becomes part of a path, and not every source of pods has checked it.
fn check_name(volume: &Volume) -> Result<(), VolumeError> {
    let bad = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '.';
    if volume.name.is_empty() || volume.name.starts_with('.') || volume.name.contains(bad) {
        let problem = "its name is not a DNS label".into();
        return Err(VolumeError::Invalid { volume: volume.name.clone(), problem });
    }
    Ok(())
}

async fn make_directories(dirs: &PodDirs) -> VolumeOutcome {
    let (dirs, path) = (dirs.clone(), dirs.path().to_string_lossy().into_owned());
    let made = tokio::task::spawn_blocking(move || dirs.ensure().map_err(|e| e.to_string())).await;
    match made.unwrap_or_else(|e| Err(e.to_string())) {
        Ok(()) => VolumeOutcome::Directories { path },
        Err(message) => VolumeOutcome::NoDirectories { message },
    }
}

#[cfg(test)]
mod tests;
