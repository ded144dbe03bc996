//! A pod's credentials for one image, looked up when they are first needed: its secrets, then what the node has, then what
//! credential providers give.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use keelson_core::ids::PodUid;
use keelson_core::image::{ImageName, Keyring, OwnedCredential, Source, of_secrets};

use super::node_credentials::NodeCredentials;
use super::providers::Providers;

/// On whose behalf an image is wanted.
pub struct PodIdentity {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
    /// Static pods have none.
    pub service_account: Option<String>,
    /// Those of its pull secrets that exist.
    pub secrets: Vec<Arc<Secret>>,
}

pub(super) struct PodCredentials<'a> {
    pod: &'a PodIdentity,
    image: &'a ImageName,
    node: &'a NodeCredentials,
    providers: &'a Providers,
    found: Option<Found>,
}

struct Found {
    credentials: Vec<OwnedCredential>,
    /// Providers that gave nothing, and why.
    problems: Vec<(String, String)>,
}

impl<'a> PodCredentials<'a> {
    pub fn new(
        pod: &'a PodIdentity,
        image: &'a ImageName,
        node: &'a NodeCredentials,
        providers: &'a Providers,
    ) -> Self {
        Self { pod, image, node, providers, found: None }
    }

    /// In the order in which they are tried.
    pub async fn look_up(&mut self) -> &[OwnedCredential] {
        if self.found.is_none() {
            self.found = Some(self.gather().await);
        }
        self.found.as_ref().map_or(&[], |found| &found.credentials)
    }

    pub fn problems(&self) -> &[(String, String)] {
        self.found.as_ref().map_or(&[], |found| &found.problems)
    }

    async fn gather(&self) -> Found {
        let of_secrets = of_secrets(self.image, self.pod.secrets.iter().map(|secret| &**secret));
        let mut found = Found { credentials: of_secrets, problems: vec![] };
        let mut of_node = Keyring::default();
        of_node.add(&Source::Node, self.node.read().await);
        found.credentials.extend(of_node.credentials(self.image));
        let mut provided = Keyring::default();
        for (provider, answer) in self.providers.ask(self.image, self.pod).await {
            match answer {
                Ok((source, config)) => provided.add(&source, config),
                Err(problem) => found.problems.push((provider, problem)),
            }
        }
        found.credentials.extend(provided.credentials(self.image));
        found
    }
}
