//! Images: there already, or fetched by the pull policy. One pull an image at a time; every pod that waits shares it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use keelson_core::image::{Credential, ImageFailure, check_name};
use keelson_cri::proto::{AuthConfig, Image, ImageSpec, PodSandboxConfig};
use keelson_cri::{CriError, Runtime};
use tokio::sync::watch;

#[derive(Clone)]
pub struct Images {
    runtime: Runtime,
    pulls: Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>,
    /// Counts pulls and removals, so that the node object's list follows.
    changed: Arc<watch::Sender<u64>>,
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
    AlreadyPresent,
    Pulling,
    Pulled { bytes: u64 },
}

pub struct Wanted<'a> {
    pub image: &'a str,
    /// Always, IfNotPresent or Never.
    pub policy: &'a str,
    pub credentials: Vec<Credential>,
    pub sandbox: &'a PodSandboxConfig,
}

impl Images {
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, pulls: Arc::default(), changed: Arc::new(watch::Sender::new(0)) }
    }

    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Makes sure that the image is there. May be dropped at any point; a pull under way is then given up.
    pub async fn ensure(
        &self,
        wanted: Wanted<'_>,
        mut progress: impl FnMut(Progress),
    ) -> Result<Present, ImageFailure> {
        let image = wanted.image;
        check_name(image)?;
        if wanted.policy != "Always"
            && let Some(found) = self.find(image).await?
        {
            progress(Progress::AlreadyPresent);
            return Ok(found);
        }
        if wanted.policy == "Never" {
            return Err(ImageFailure::NeverPull { image: image.to_owned() });
        }
        let turn = self.turn(image);
        let _held = turn.lock().await;
        // Somebody else may have pulled it while we waited for our turn.
        if wanted.policy != "Always"
            && let Some(found) = self.find(image).await?
        {
            progress(Progress::AlreadyPresent);
            return Ok(found);
        }
        progress(Progress::Pulling);
        let failed = |error: String| ImageFailure::Pull { image: image.to_owned(), error };
        self.pull(&wanted).await.map_err(|e| failed(e.message))?;
        self.changed.send_modify(|n| *n += 1);
        let found = self.status(image).await?;
        let found = found.ok_or_else(|| failed("the image was pulled but is not there".into()))?;
        progress(Progress::Pulled { bytes: found.size });
        Ok(present(found))
    }

    /// With each credential in turn; without any if there is none.
    async fn pull(&self, wanted: &Wanted<'_>) -> Result<(), CriError> {
        let mut last = None;
        let tries: Vec<Option<AuthConfig>> = if wanted.credentials.is_empty() {
            vec![None]
        } else {
            wanted.credentials.iter().map(|c| Some(auth(c))).collect()
        };
        let spec = ImageSpec { image: wanted.image.to_owned(), ..ImageSpec::default() };
        for credential in tries {
            match self.runtime.pull_image(spec.clone(), credential, wanted.sandbox).await {
                Ok(_) => return Ok(()),
                Err(e) => last = Some(e),
            }
        }
        last.map_or(Ok(()), Err)
    }

    async fn find(&self, image: &str) -> Result<Option<Present>, ImageFailure> {
        Ok(self.status(image).await?.map(present))
    }

    async fn status(&self, image: &str) -> Result<Option<Image>, ImageFailure> {
        let asked = self.runtime.image_status(image).await;
        asked.map_err(|e| ImageFailure::Inspect { image: image.to_owned(), error: e.to_string() })
    }

    fn turn(&self, image: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        // Turns that nobody holds are forgotten, so that the table does not grow with every image ever seen.
        pulls.retain(|_, turn| Arc::strong_count(turn) > 1);
        pulls.entry(image.to_owned()).or_default().clone()
    }
}

fn present(image: Image) -> Present {
    Present { id: image.id, uid: image.uid.map(|v| v.value), username: image.username }
}

fn auth(c: &Credential) -> AuthConfig {
    AuthConfig {
        username: c.username.clone(),
        password: c.password.clone(),
        auth: c.auth.clone(),
        identity_token: c.identity_token.clone(),
        registry_token: c.registry_token.clone(),
        ..Default::default()
    }
}
