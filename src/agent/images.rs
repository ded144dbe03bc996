//! Images: there already, or fetched by the pull policy. One pull an image at a time; every pod that waits shares it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use keelson_core::pull_secrets::Credential;
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The policy forbids pulling and the image is not there.
    NeverPull(String),
    InvalidName(String),
    Pull(String),
    /// The runtime could not even be asked.
    Inspect(String),
}

impl Failure {
    /// As the container's waiting reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NeverPull(_) => "ErrImageNeverPull",
            Self::InvalidName(_) => "InvalidImageName",
            Self::Pull(_) => "ErrImagePull",
            Self::Inspect(_) => "ImageInspectError",
        }
    }
    pub fn message(&self) -> &str {
        match self {
            Self::NeverPull(m) | Self::InvalidName(m) | Self::Pull(m) | Self::Inspect(m) => m,
        }
    }
}

/// What happens on the way, for events.
pub enum Progress<'a> {
    AlreadyPresent,
    Pulling,
    Pulled { took: std::time::Duration, waited: std::time::Duration, bytes: u64 },
    Failed(&'a str),
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
        mut progress: impl FnMut(Progress<'_>),
    ) -> Result<Present, Failure> {
        let image = wanted.image;
        if let Some(problem) = bad_name(image) {
            return Err(Failure::InvalidName(format!(
                "Failed to apply default image tag {image:?}: {problem}"
            )));
        }
        if wanted.policy != "Always"
            && let Some(found) = self.find(image).await?
        {
            progress(Progress::AlreadyPresent);
            return Ok(found);
        }
        if wanted.policy == "Never" {
            let message = format!("Container image {image:?} is not present with pull policy of Never");
            return Err(Failure::NeverPull(message));
        }
        let asked = Instant::now();
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
        let began = Instant::now();
        if let Err(e) = self.pull(&wanted).await {
            let message = format!("failed to pull image {image:?}: {}", e.message);
            progress(Progress::Failed(&message));
            return Err(Failure::Pull(message));
        }
        self.changed.send_modify(|n| *n += 1);
        let found = self.status(image).await?;
        let found =
            found.ok_or_else(|| Failure::Pull(format!("image {image:?} was pulled but is not there")))?;
        progress(Progress::Pulled { took: began.elapsed(), waited: asked.elapsed(), bytes: found.size });
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

    async fn find(&self, image: &str) -> Result<Option<Present>, Failure> {
        Ok(self.status(image).await?.map(present))
    }

    async fn status(&self, image: &str) -> Result<Option<Image>, Failure> {
        let asked = self.runtime.image_status(image).await;
        asked.map_err(|e| Failure::Inspect(format!("Failed to inspect image {image:?}: {e}")))
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

/// The runtime decides about names; what can never be one is refused before it is asked.
fn bad_name(image: &str) -> Option<&'static str> {
    if image.is_empty() {
        Some("the name is empty")
    } else if image.len() > 4096 {
        Some("the name is longer than 4096 bytes")
    } else if image.chars().any(|c| c.is_whitespace() || c.is_control()) {
        Some("invalid reference format: the name contains white space")
    } else if image
        .split(['@', ':'])
        .next()
        .is_some_and(|n| n.rsplit('/').next().is_some_and(|l| l.chars().any(char::is_uppercase)))
    {
        Some("invalid reference format: repository name must be lowercase")
    } else {
        None
    }
}
