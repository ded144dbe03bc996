//! The seam between the manager and a kind of volume.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use keelson_core::volumes::{
    ClaimedVolume, FsGroup, Needs, Payload, TokenNeed, TrustBundle, VolumeInput, VolumePlace, payload,
};
use keelson_host::dirs::PodDirs;
use keelson_host::{PathError, mountinfo, mounting};

use crate::error::VolumeError;
use crate::ownership::{Interrupt, Walk, Walked, give_to_group};
use crate::stats::{Measure, VolumeStats};

/// Work on one volume. Boxed, so that kinds can be kept in one list: most of them block on a thread for it, others will
/// wait for a driver.
pub type VolumeFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, VolumeError>> + Send + 'a>>;

/// One kind of volume.
pub trait VolumePlugin: Send + Sync {
    /// The name of its directory in a pod's `volumes`, as a kubelet has it on disk.
    fn directory(&self) -> &'static str;

    /// True when a volume is of this kind.
    fn claims(&self, volume: &Volume) -> bool;

    /// What has to be gathered before the volume can be prepared.
    fn needs(&self, volume: &Volume) -> Needs {
        Needs::of(volume)
    }

    /// Sets the volume up, or brings what it shows up to date. Doing it twice is doing it once.
    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared>;

    /// Gives a volume back in which nothing is mounted any more. Its directory goes with the pod's own.
    fn release(&self, mounted: Mounted) -> VolumeFuture<'_, ()> {
        blocking(mounted.volume.clone(), move || {
            let there = mountinfo::is_mountpoint(&mounted.path);
            let gone = there.and_then(|there| if there { mounting::unmount(&mounted.path) } else { Ok(()) });
            gone.map_err(|source| VolumeError::Path { volume: mounted.volume, source })
        })
    }

    /// The volumes of this kind that the pod's directory holds, whoever put them there.
    fn reconstruct(&self, dirs: &PodDirs) -> Result<Vec<Mounted>, PathError> {
        let found = dirs.list_volumes(self.directory())?;
        Ok(found.into_iter().map(|volume| self.mounted(dirs, &volume)).collect())
    }

    /// What the volume holds. `None` if nobody can say now.
    fn stats(&self, mounted: Mounted, measure: Measure) -> VolumeFuture<'_, Option<VolumeStats>> {
        blocking(mounted.volume.clone(), move || Ok(measure.local(&mounted)))
    }

    /// A volume at the place that its kind and name give it.
    fn mounted(&self, dirs: &PodDirs, volume: &str) -> Mounted {
        Mounted { volume: volume.to_owned(), path: dirs.volume(self.directory(), volume) }
    }
}

/// A volume that is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    pub volume: String,
    pub path: PathBuf,
}

/// A volume that a container can be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    pub place: VolumePlace,
    /// When it has to be prepared again although nothing has changed.
    pub refresh_at: Option<Timestamp>,
}

impl From<Mounted> for Prepared {
    fn from(mounted: Mounted) -> Self {
        let path = mounted.path.to_string_lossy().into_owned();
        Self { place: VolumePlace::Host(path), refresh_at: None }
    }
}

/// An order to prepare one volume.
#[derive(Clone)]
pub struct Prepare {
    pub pod: Arc<PodSetup>,
    pub volume: Volume,
    pub gathered: Gathered,
}

/// How often is said how far a walk through a volume has come.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// Hears how far work on a volume has come that can take long. Called on the thread that does the work.
pub trait Progress: Send + Sync {
    /// So many entries of the volume at `path` were given to the pod's fsGroup since the work began.
    fn owned(&self, path: &Path, entries: u64, took: Duration);
}

/// Where nobody wants to know.
pub struct NoProgress;

impl Progress for NoProgress {
    fn owned(&self, _: &Path, _: u64, _: Duration) {}
}

/// What is the same for all volumes of a pod.
pub struct PodSetup {
    pub pod: Arc<Pod>,
    pub dirs: PodDirs,
    pub node_allocatable: BTreeMap<String, Quantity>,
    pub progress: Arc<dyn Progress>,
}

/// What a volume needs, as far as it exists.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    pub config_maps: BTreeMap<String, Arc<ConfigMap>>,
    pub secrets: BTreeMap<String, Arc<Secret>>,
    pub tokens: BTreeMap<TokenNeed, String>,
    pub trust_bundles: Arc<Vec<TrustBundle>>,
    /// What its claim is bound to.
    pub claimed: Option<Arc<ClaimedVolume>>,
    /// When the first of the tokens is to be renewed.
    pub renew_at: Option<Timestamp>,
}

impl PodSetup {
    /// The group that all files of the pod's volumes are given.
    pub fn fs_group(&self) -> Option<u32> {
        self.ownership().map(|group| group.id)
    }

    /// With the pod's change policy, for volumes that outlive it. What goes with the pod is always gone through.
    pub fn ownership(&self) -> Option<FsGroup> {
        FsGroup::of(&self.pod)
    }
}

impl Prepare {
    /// The files of a volume whose kind is made of files.
    pub fn payload(&self) -> Result<Payload<'_>, VolumeError> {
        let input = VolumeInput {
            pod: &self.pod.pod,
            config_maps: &self.gathered.config_maps,
            secrets: &self.gathered.secrets,
            tokens: &self.gathered.tokens,
            trust_bundles: &self.gathered.trust_bundles,
            node_allocatable: &self.pod.node_allocatable,
        };
        Ok(payload(&self.volume, &input)?.unwrap_or_default())
    }

    /// Gives all that lies in the volume to a group, unless who waits for it goes away.
    pub(crate) fn give_to_group(
        &self,
        path: &Path,
        group: FsGroup,
        interrupt: &Interrupt,
    ) -> Result<(), VolumeError> {
        let began = Instant::now();
        let progress = |entries| self.pod.progress.owned(path, entries, began.elapsed());
        let walk =
            Walk { group, read_only: false, interrupt, progress: &progress, report_every: REPORT_EVERY };
        match give_to_group(path, &walk).map_err(self.path_error())? {
            Walked::All { .. } | Walked::Skipped => Ok(()),
            Walked::Interrupted => Err(VolumeError::Aborted {
                volume: self.volume.name.clone(),
                problem: "its files were being given to the pod's fsGroup".into(),
            }),
        }
    }

    pub fn path_error(&self) -> impl Fn(PathError) -> VolumeError + use<> {
        let volume = self.volume.name.clone();
        move |source| VolumeError::Path { volume: volume.clone(), source }
    }
}

/// Off the async threads, with a panic turned into an error like any other.
pub(crate) fn blocking<T: Send + 'static>(
    volume: String,
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> VolumeFuture<'static, T> {
    Box::pin(async move {
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(e) => Err(VolumeError::Aborted { volume, problem: e.to_string() }),
        }
    })
}

/// As `blocking`, for work that ends early when nobody waits for it any more.
pub(crate) fn interruptible<T: Send + 'static>(
    volume: String,
    work: impl FnOnce(&Interrupt) -> Result<T, VolumeError> + Send + 'static,
) -> VolumeFuture<'static, T> {
    Box::pin(async move {
        let interrupt = Interrupt::default();
        let _interrupts = interrupt.on_drop();
        blocking(volume, move || work(&interrupt)).await
    })
}
