//! Who may use an image that is on this machine already. Without it a private image would be everybody's as soon as one pod has
//! pulled it.

use super::allowlist::Allowlist;
use super::keyring::{OwnedCredential, Source};
use super::name::without_tag;
use super::records::{PullAccount, PullCredentials, PullSecret, PulledRecord};
use crate::config::{ImagePullVerification, KubeletConfiguration};

/// The gate of the kubelet that switches all of this off.
const GATE: &str = "KubeletEnsureSecretPulledImages";

/// Up to this many secrets a record is written for one that was only compared, so that namespaces that come and go do not fill
/// the disk.
const MOST_COMPARED: usize = 100;

#[derive(Debug, Clone, PartialEq)]
pub struct AccessPolicy {
    enabled: bool,
    verification: ImagePullVerification,
    allowlist: Allowlist,
}

/// What is known without looking at the pod's credentials.
#[derive(Debug, Clone, PartialEq)]
pub enum Access {
    Granted,
    /// It has to be pulled again, which shows whether the pod may have it.
    Unproven,
    /// Those who have one of these may use it.
    With(PullCredentials),
}

impl AccessPolicy {
    pub fn of(kubelet: &KubeletConfiguration) -> Self {
        Self {
            enabled: kubelet.feature_gates.get(GATE) != Some(&false),
            verification: kubelet.image_pull_credentials_verification_policy,
            // What is wrong with it was said when the configuration was read.
            allowlist: Allowlist::of(&kubelet.preloaded_images_verification_allowlist).unwrap_or_default(),
        }
    }

    /// Whether pulls are recorded and access is checked at all.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// `record` is that of the image that is here under this name; `intended`: a pull of that name had begun.
    pub fn access(&self, image: &str, record: Option<&PulledRecord>, intended: bool) -> Access {
        if !self.must_verify(image, record.is_some() || intended) {
            return Access::Granted;
        }
        match record.and_then(|record| record.credentials(without_tag(image))) {
            None => Access::Unproven,
            Some(known) if known.node_pods_accessible => Access::Granted,
            Some(known) => Access::With(known.clone()),
        }
    }

    fn must_verify(&self, image: &str, pulled: bool) -> bool {
        self.enabled
            && match self.verification {
                ImagePullVerification::NeverVerify => false,
                ImagePullVerification::NeverVerifyPreloadedImages => pulled,
                ImagePullVerification::NeverVerifyAllowlistedImages => !self.allowlist.contains(image),
                ImagePullVerification::AlwaysVerify => true,
            }
    }
}

impl PullCredentials {
    /// Whether a pod with these may use the image, by a secret with the same content or by the same secret with another (it was
    /// rotated), or as the same service account; then with what the record is to know beside.
    pub fn admits(&self, pod: &[OwnedCredential]) -> Option<PullCredentials> {
        for owned in pod {
            let Source::Secret(coordinates) = &owned.source else { continue };
            let own = PullSecret::new(coordinates, &owned.hash);
            let same_content = |known: &&PullSecret| known.credential_hash == own.credential_hash;
            let content = self.kubernetes_secrets.iter().any(|known| same_content(&known));
            let place = self.kubernetes_secrets.iter().any(|known| known.place() == own.place());
            // What changes nothing is not written. A rotated secret of a long list is not believed, since it would not be noted.
            let room = self.kubernetes_secrets.len() < MOST_COMPARED;
            if content || place && room {
                let secrets = if room { vec![own] } else { vec![] };
                return Some(PullCredentials { kubernetes_secrets: secrets, ..Self::default() });
            }
        }
        // Which audience the token was for does not count, so a pod has one account.
        let account = pod.iter().find_map(|owned| match &owned.source {
            Source::ServiceAccount(coordinates) => Some(PullAccount::new(coordinates)),
            _ => None,
        })?;
        self.kubernetes_service_accounts.contains(&account).then(Self::default)
    }
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
