//! Images: there already and the pod's to use, or fetched by the pull policy. One pull an image at a time; every pod that waits
//! shares it.

pub mod archives;
mod node_credentials;
mod plugin;
mod pod_credentials;
mod providers;
mod pull;
mod records;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use keelson_apiserver::{Api, TokenCache};
use keelson_core::config::Settings;
use keelson_core::image::{Access, AccessPolicy, ImageFailure, ImageName, PullRate, check_name};
use keelson_cri::Runtime;
use keelson_cri::proto::{Image, PodSandboxConfig};
use tokio::sync::{Semaphore, watch};

use node_credentials::NodeCredentials;
use pod_credentials::PodCredentials;
pub use pod_credentials::PodIdentity;
use providers::Providers;
use records::Records;

#[derive(Clone)]
pub struct Images(Arc<Shared>);

struct Shared {
    runtime: Runtime,
    policy: AccessPolicy,
    records: Records,
    node_credentials: NodeCredentials,
    providers: Providers,
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// How many pulls may be under way. None: as many as there are images to pull.
    slots: Option<Semaphore>,
    rate: Mutex<PullRate>,
    /// Counts pulls and removals, so that the node object's list follows.
    changed: watch::Sender<u64>,
}

/// An image that is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// What containers are created from.
    pub id: String,
    /// The user that the image itself asks for.
    pub uid: Option<i64>,
    pub username: String,
}

/// What happens on the way, for events.
pub enum Progress {
    /// It is there. `checked`: and it was made sure that the pod may use it.
    AlreadyPresent {
        checked: bool,
    },
    /// A credential provider did not do its work; what is left may do.
    NoCredentials {
        provider: String,
        problem: String,
    },
    Pulling,
    Pulled {
        bytes: u64,
    },
}

pub struct Wanted<'a> {
    pub image: &'a str,
    /// Always, IfNotPresent or Never.
    pub policy: &'a str,
    pub pod: PodIdentity,
    pub sandbox: &'a PodSandboxConfig,
}

impl Images {
    pub fn new(runtime: Runtime, settings: &Settings, api: Option<(Api, TokenCache)>) -> Self {
        let kubelet = &settings.kubelet;
        let slots = match kubelet.serialize_image_pulls {
            true => Some(1),
            false => kubelet.max_parallel_image_pulls.and_then(|most| usize::try_from(most).ok()),
        };
        Self(Arc::new(Shared {
            runtime,
            policy: AccessPolicy::of(kubelet),
            records: Records::new(&settings.paths.root_dir),
            node_credentials: NodeCredentials::new(&settings.paths.root_dir),
            providers: Providers::new(settings, api),
            turns: Mutex::default(),
            slots: slots.map(Semaphore::new),
            rate: Mutex::new(PullRate::new(kubelet.registry_pull_qps, kubelet.registry_burst)),
            changed: watch::Sender::new(0),
        }))
    }

    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Images came in another way than by a pull.
    fn brought(&self) {
        self.0.changed.send_modify(|n| *n += 1);
    }

    /// Makes sure that the image is there and that the pod may use it. May be dropped at any point; a pull under way is then
    /// given up.
    pub async fn ensure(
        &self,
        wanted: Wanted<'_>,
        mut progress: impl FnMut(Progress),
    ) -> Result<Present, ImageFailure> {
        let shared = &*self.0;
        let image = wanted.image;
        check_name(image)?;
        let failed = |error: String| ImageFailure::Pull { image: image.to_owned(), error };
        let name = ImageName::parse(image).map_err(&failed)?;
        let mut credentials =
            PodCredentials::new(&wanted.pod, &name, &shared.node_credentials, &shared.providers);
        let present = Progress::AlreadyPresent { checked: shared.policy.enabled() };
        if wanted.policy != "Always"
            && let Some(found) = shared.usable(image, &mut credentials).await?
        {
            progress(present);
            return Ok(found);
        }
        // Of an image that is there for others no more is said than of one that is not there at all.
        if wanted.policy == "Never" {
            return Err(ImageFailure::NeverPull { image: image.to_owned() });
        }
        // Before it is anybody's turn: a provider that takes its time holds up nobody else's pull.
        credentials.look_up().await;
        for (provider, problem) in credentials.problems() {
            progress(Progress::NoCredentials { provider: provider.clone(), problem: problem.clone() });
        }
        let turn = self.turn(image);
        let _held = turn.lock().await;
        // Somebody else may have pulled it while we waited for our turn.
        if wanted.policy != "Always"
            && let Some(found) = shared.usable(image, &mut credentials).await?
        {
            progress(present);
            return Ok(found);
        }
        let _slot = match &shared.slots {
            Some(slots) => slots.acquire().await.ok(),
            None => None,
        };
        progress(Progress::Pulling);
        let found = shared.pull(&wanted, &mut credentials).await.map_err(|error| {
            failed(credentials.problems().iter().fold(error, |error, (provider, problem)| {
                format!("{error} (credential provider {provider}: {problem})")
            }))
        })?;
        shared.changed.send_modify(|n| *n += 1);
        progress(Progress::Pulled { bytes: found.size });
        Ok(present_as(found))
    }

    /// Pulls that an earlier agent did not see the end of: where the image is there, whoever wants it has to show that they may.
    pub async fn settle_earlier_pulls(&self) {
        for image in self.0.records.earlier_intents().await {
            let turn = self.turn(&image);
            let _held = turn.lock().await;
            match self.0.runtime.image_status(&image).await {
                Ok(Some(found)) => self.0.records.settle_intent(&image, &found.id).await,
                // The file stays, and with it the caution.
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, image, "whether an earlier pull ended well is not known");
                }
            }
        }
    }

    fn turn(&self, image: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // Turns that nobody holds are forgotten, so that the table does not grow with every image ever seen.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(image.to_owned()).or_default().clone()
    }
}

impl Shared {
    /// The image, if it is there and the pod may use it.
    async fn usable(
        &self,
        image: &str,
        credentials: &mut PodCredentials<'_>,
    ) -> Result<Option<Present>, ImageFailure> {
        let Some(found) = self.status(image).await? else { return Ok(None) };
        // As if it had been pulled and nobody were known to have it: what is everybody's even then needs no record.
        if self.policy.access(image, None, true) == Access::Granted {
            return Ok(Some(present_as(found)));
        }
        let (record, intended) = match self.records.about(image, &found.id).await {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(error, image, "who may use the image is not known; it is pulled again");
                return Ok(None);
            }
        };
        let granted = match self.policy.access(image, record.as_ref(), intended) {
            Access::Granted => true,
            Access::Unproven => false,
            Access::With(known) => match known.admits(credentials.look_up().await) {
                Some(note) => {
                    self.records.admit(image, &found.id, note, Timestamp::now()).await;
                    true
                }
                None => false,
            },
        };
        Ok(granted.then(|| present_as(found)))
    }

    async fn status(&self, image: &str) -> Result<Option<Image>, ImageFailure> {
        let asked = self.runtime.image_status(image).await;
        asked.map_err(|e| ImageFailure::Inspect { image: image.to_owned(), error: e.to_string() })
    }

    fn may_pull_now(&self) -> bool {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner).admits(Instant::now())
    }
}

fn present_as(image: Image) -> Present {
    Present { id: image.id, uid: image.uid.map(|v| v.value), username: image.username }
}

#[cfg(test)]
mod tests;
