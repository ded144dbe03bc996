//! What registries are logged in to with, as docker's own client writes it into files and people into pull secrets.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use k8s_openapi::api::core::v1::Secret;
use keelson_kit::hex;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::keyring::{Coordinates, Keyring, OwnedCredential, Source};
use super::name::ImageName;
use crate::hash::push_json;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Credential {
    pub username: String,
    pub password: String,
    /// As the secret's `auth` field holds it (base64 of user:password), where it could not be taken apart.
    pub auth: String,
    pub identity_token: String,
    pub registry_token: String,
}

impl std::fmt::Debug for Credential {
    /// Without what is secret: it ends up in logs otherwise.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Credentials by the registry, or the part of one, that they are for.
#[derive(Deserialize, Clone, Default)]
#[serde(transparent)]
pub struct DockerConfig(BTreeMap<String, Option<Entry>>);

/// What is around it in config.json.
#[derive(Deserialize)]
struct Framed {
    auths: Option<DockerConfig>,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    email: String,
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

impl DockerConfig {
    /// Of a config.json, which has other settings beside the credentials.
    pub fn framed(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice::<Framed>(text).map(|f| f.auths.unwrap_or_default()).map_err(unreadable)
    }

    /// Of a .dockercfg, the older kind, which has nothing else.
    pub fn plain(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(unreadable)
    }

    pub fn with_password(mut self, location: String, username: String, password: String) -> Self {
        self.0.insert(location, Some(Entry { username, password, ..Entry::default() }));
        self
    }

    pub(super) fn into_credentials(self) -> impl Iterator<Item = (String, (Credential, String))> {
        self.0.into_iter().map(|(location, entry)| (location, entry.unwrap_or_default().credential()))
    }
}

/// Where it is wrong, without the text around it, which is secret.
fn unreadable(error: serde_json::Error) -> String {
    format!("is not as docker writes it, at line {} column {}", error.line(), error.column())
}

/// The credentials for `image` in the secrets that a pod names. A secret that cannot be read gives none.
pub fn of_secrets<'a>(
    image: &ImageName,
    secrets: impl IntoIterator<Item = &'a Secret>,
) -> Vec<OwnedCredential> {
    let mut keyring = Keyring::default();
    for secret in secrets {
        if let Some(config) = config(secret) {
            let meta = secret.metadata.clone();
            let coordinates = Coordinates {
                uid: meta.uid.unwrap_or_default(),
                namespace: meta.namespace.unwrap_or_default(),
                name: meta.name.unwrap_or_default(),
            };
            keyring.add(&Source::Secret(coordinates), config);
        }
    }
    keyring.credentials(image)
}

fn config(secret: &Secret) -> Option<DockerConfig> {
    let data = |key: &str| secret.data.as_ref().and_then(|d| d.get(key));
    match secret.type_.as_deref()? {
        "kubernetes.io/dockerconfigjson" => DockerConfig::framed(&data(".dockerconfigjson")?.0).ok(),
        "kubernetes.io/dockercfg" => DockerConfig::plain(&data(".dockercfg")?.0).ok(),
        _ => None,
    }
}

impl Entry {
    /// What stands in `auth` is what the registry's own client wrote, so it counts before a name and password beside it. A
    /// token takes the password's place, and then there may be none.
    fn credential(self) -> (Credential, String) {
        let mut credential = Credential {
            username: self.username,
            password: self.password,
            auth: self.auth,
            identity_token: self.identitytoken,
            registry_token: self.registrytoken,
        };
        if credential.identity_token.is_empty()
            && let Some((username, password)) = decode(&credential.auth)
        {
            credential = Credential { username, password, auth: String::new(), ..credential };
        }
        let hash = hash(&credential, &self.email);
        (credential, hash)
    }
}

/// Tells credentials apart in records: the sha256 of what a kubelet would hand to the runtime, as Go writes it in JSON. A kubelet
/// knows no tokens; they count here, or all of a registry's would be one.
fn hash(credential: &Credential, email: &str) -> String {
    let mut json = String::from("{");
    for (name, value) in [
        ("username", credential.username.as_str()),
        ("password", &credential.password),
        ("auth", &credential.auth),
        ("email", email),
        ("identitytoken", &credential.identity_token),
        ("registrytoken", &credential.registry_token),
    ] {
        if !value.is_empty() {
            json.push_str(if json.len() > 1 { ",\"" } else { "\"" });
            json.push_str(name);
            json.push_str("\":");
            push_json(&mut json, value);
        }
    }
    json.push('}');
    hex::encode(Sha256::digest(json))
}

/// User and password, from base64 with padding or without.
fn decode(auth: &str) -> Option<(String, String)> {
    const EITHER: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let text = String::from_utf8(EITHER.decode(auth.trim()).ok()?).ok()?;
    let (username, password) = text.split_once(':')?;
    Some((username.to_owned(), password.to_owned()))
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
