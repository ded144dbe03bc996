//! A pod's credentials for one image, looked up when they are first needed: its secrets, then what the node has.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use keelson_core::image::{ImageName, Keyring, OwnedCredential, Source, of_secrets};

use super::node_credentials::NodeCredentials;

/// On whose behalf an image is wanted.
pub struct PodIdentity {
    /// Those of its pull secrets that exist.
    pub secrets: Vec<Arc<Secret>>,
}

pub(super) struct PodCredentials<'a> {
    pod: &'a PodIdentity,
    image: &'a ImageName,
    node: &'a NodeCredentials,
    found: Option<Vec<OwnedCredential>>,
}

impl<'a> PodCredentials<'a> {
    pub fn new(pod: &'a PodIdentity, image: &'a ImageName, node: &'a NodeCredentials) -> Self {
        Self { pod, image, node, found: None }
    }

    /// In the order in which they are tried.
    pub async fn look_up(&mut self) -> &[OwnedCredential] {
        if self.found.is_none() {
            self.found = Some(self.gather().await);
        }
        self.found.as_deref().unwrap_or_default()
    }

    async fn gather(&self) -> Vec<OwnedCredential> {
        let mut found = of_secrets(self.image, self.pod.secrets.iter().map(|secret| &**secret));
        let mut of_node = Keyring::default();
        of_node.add(&Source::Node, self.node.read().await);
        found.extend(of_node.credentials(self.image));
        found
    }
}
