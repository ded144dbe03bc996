//! The records of pulled images under image_manager, in the kubelet's format, so that either agent goes on from the other's: with
//! whose credentials each image came, and which pulls were under way.

use std::collections::BTreeMap;

use jiff::Timestamp;
use keelson_kit::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::keyring::{Coordinates, OwnedCredential, Source};

const VERSIONS: [&str; 2] = ["kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];

/// An image that the agent has pulled, whatever its names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PulledRecord {
    kind: String,
    api_version: String,
    last_updated_time: Option<Timestamp>,
    /// As the runtime calls it.
    pub image_ref: String,
    /// By the image's name in a pod, without tag and digest. A name that is not here has to prove itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, PullCredentials>,
}

/// Written before a pull, removed after it: should the agent end in between, the image counts as pulled, and by nobody yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullIntent {
    kind: String,
    api_version: String,
    pub image: String,
}

/// Who has shown that they may use an image.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PullCredentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<PullSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<PullAccount>,
    /// Everybody: it came without a credential, or with one of the node's own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullSecret {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub credential_hash: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PullAccount {
    uid: String,
    namespace: String,
    name: String,
}

/// Why a file cannot be gone by.
#[derive(Debug, thiserror::Error)]
pub enum BadRecord {
    #[error("it is no record: {0}")]
    Unreadable(#[from] serde_json::Error),
    #[error("it is a {kind} of {version}, and a {wanted} of {} is wanted", VERSIONS[0])]
    Kind { kind: String, version: String, wanted: &'static str },
}

/// The name of the file that is about an image.
pub fn file_name(image: &str) -> String {
    format!("sha256-{}", hex::encode(Sha256::digest(image)))
}

impl PullIntent {
    const KIND: &str = "ImagePullIntent";

    pub fn new(image: &str) -> Self {
        Self { kind: Self::KIND.into(), api_version: VERSIONS[0].into(), image: image.into() }
    }

    pub fn decode(text: &[u8]) -> Result<Self, BadRecord> {
        let read: Self = serde_json::from_slice(text)?;
        checked(&read.kind, &read.api_version, Self::KIND).map(|()| read)
    }

    pub fn encode(&self) -> String {
        line(self)
    }
}

impl PulledRecord {
    const KIND: &str = "ImagePulledRecord";

    /// That the image was pulled, and by nobody that is known.
    pub fn new(image_ref: &str, now: Timestamp) -> Self {
        Self {
            kind: Self::KIND.into(),
            api_version: VERSIONS[0].into(),
            last_updated_time: Some(seconds(now)),
            image_ref: image_ref.into(),
            credential_mapping: BTreeMap::new(),
        }
    }

    pub fn decode(text: &[u8]) -> Result<Self, BadRecord> {
        let read: Self = serde_json::from_slice(text)?;
        checked(&read.kind, &read.api_version, Self::KIND).map(|()| read)
    }

    pub fn encode(&self) -> String {
        line(&Self { api_version: VERSIONS[0].into(), ..self.clone() })
    }

    /// Who may use it under this name, which has neither tag nor digest.
    pub fn credentials(&self, name: &str) -> Option<&PullCredentials> {
        self.credential_mapping.get(name)
    }

    /// Adds who may use it under a name. Answers whether that is anything new.
    pub fn admit(&mut self, name: &str, new: &PullCredentials, now: Timestamp) -> bool {
        let nobody = PullCredentials::default();
        let known = self.credential_mapping.get(name);
        let merged = known.unwrap_or(&nobody).with(new);
        let changed = *new != nobody && known != Some(&merged);
        if changed {
            self.credential_mapping.insert(name.to_owned(), merged);
            self.last_updated_time = Some(seconds(now));
        }
        changed
    }
}

impl PullCredentials {
    /// Whoever has what the image was pulled with.
    pub fn of(used: Option<&OwnedCredential>) -> Self {
        let Some(used) = used else { return Self { node_pods_accessible: true, ..Self::default() } };
        match &used.source {
            Source::Node => Self { node_pods_accessible: true, ..Self::default() },
            Source::Secret(c) => {
                Self { kubernetes_secrets: vec![PullSecret::new(c, &used.hash)], ..Self::default() }
            }
            Source::ServiceAccount(c) => {
                Self { kubernetes_service_accounts: vec![PullAccount::new(c)], ..Self::default() }
            }
        }
    }

    /// Secrets and accounts are kept sorted; what a secret holds now replaces what it held.
    fn with(&self, new: &Self) -> Self {
        if self.node_pods_accessible || new.node_pods_accessible {
            return Self { node_pods_accessible: true, ..Self::default() };
        }
        let mut merged = self.clone();
        for secret in &new.kubernetes_secrets {
            merged.kubernetes_secrets.retain(|known| known.place() != secret.place());
            merged.kubernetes_secrets.push(secret.clone());
        }
        for account in &new.kubernetes_service_accounts {
            merged.kubernetes_service_accounts.retain(|known| known != account);
            merged.kubernetes_service_accounts.push(account.clone());
        }
        merged.kubernetes_secrets.sort_by(|a, b| a.place().cmp(&b.place()));
        merged.kubernetes_service_accounts.sort_by(|a, b| a.place().cmp(&b.place()));
        merged
    }
}

impl PullSecret {
    pub fn new(c: &Coordinates, hash: &str) -> Self {
        let Coordinates { uid, namespace, name } = c.clone();
        Self { uid, namespace, name, credential_hash: hash.to_owned() }
    }

    pub fn place(&self) -> [&str; 3] {
        [&self.namespace, &self.name, &self.uid]
    }
}

impl PullAccount {
    pub fn new(c: &Coordinates) -> Self {
        let Coordinates { uid, namespace, name } = c.clone();
        Self { uid, namespace, name }
    }

    fn place(&self) -> [&str; 3] {
        [&self.namespace, &self.name, &self.uid]
    }
}

fn checked(kind: &str, version: &str, wanted: &'static str) -> Result<(), BadRecord> {
    match kind == wanted && VERSIONS.contains(&version) {
        true => Ok(()),
        false => Err(BadRecord::Kind { kind: kind.into(), version: version.into(), wanted }),
    }
}

/// The API's times are in whole seconds.
fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn line(record: &impl Serialize) -> String {
    serde_json::to_string(record).map(|text| text + "\n").unwrap_or_default()
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
