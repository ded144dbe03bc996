//! One pull: recorded before it begins, tried with each credential, recorded with the one that it took.

use jiff::Timestamp;
use keelson_core::image::{Credential, OwnedCredential, PullCredentials, attempts};
use keelson_cri::CriError;
use keelson_cri::proto::{AuthConfig, Image, ImageSpec};

use super::pod_credentials::PodCredentials;
use super::{Shared, Wanted};

impl Shared {
    /// The error is what is said of it. If this is dropped, the record of the intent stays: the runtime may have finished all the
    /// same, and an image that came so must not count as one that was always there.
    pub(super) async fn pull(
        &self,
        wanted: &Wanted<'_>,
        credentials: &mut PodCredentials<'_>,
    ) -> Result<Image, String> {
        let image = wanted.image;
        let recorded = self.policy.enabled();
        if recorded {
            let intended = self.records.intend(image).await;
            intended.map_err(|e| format!("failed to record image pull intent: {e}"))?;
        }
        if !self.may_pull_now() {
            if recorded {
                self.records.forget_intent(image).await;
            }
            return Err("pull QPS exceeded".into());
        }
        match self.try_each(wanted, credentials.look_up().await).await {
            Ok((reference, used)) => {
                if recorded {
                    let who = PullCredentials::of(used.as_ref());
                    self.records.pulled(image, &reference, who, Timestamp::now()).await;
                }
            }
            Err(error) => {
                // Without an answer it is not known what the runtime did.
                let answered = !matches!(
                    error.kind,
                    keelson_cri::ErrorKind::Unavailable | keelson_cri::ErrorKind::Timeout
                );
                if recorded && answered {
                    self.records.forget_intent(image).await;
                }
                return Err(error.message);
            }
        }
        let found = self.status(image).await.map_err(|failure| failure.message())?;
        found.ok_or_else(|| "the image was pulled but is not there".into())
    }

    /// With each credential in turn; without any if there is none. Answers with the image and the credential that it took.
    async fn try_each(
        &self,
        wanted: &Wanted<'_>,
        credentials: &[OwnedCredential],
    ) -> Result<(String, Option<OwnedCredential>), CriError> {
        let spec = ImageSpec { image: wanted.image.to_owned(), ..ImageSpec::default() };
        let mut tries = attempts(credentials).into_iter();
        let mut owned = tries.next();
        loop {
            let auth = owned.map(|owned| auth(&owned.credential));
            match self.runtime.pull_image(spec.clone(), auth, wanted.sandbox).await {
                Ok(reference) => return Ok((reference, owned.cloned())),
                Err(error) => match tries.next() {
                    Some(next) => owned = Some(next),
                    None => return Err(error),
                },
            }
        }
    }
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
