//! Which credentials belong to an image: the dockerconfigjson and dockercfg secrets that a pod names.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;

use super::name::{FORMER_HUB, ImageName};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Credential {
    pub username: String,
    pub password: String,
    /// As the secret's `auth` field holds it (base64 of user:password), where it could not be taken apart.
    pub auth: String,
    pub identity_token: String,
    pub registry_token: String,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

/// A registry, or a part of one, that a credential was given for. Their order is that in which they are tried: backwards by
/// their text, so that a longer path comes before the shorter one that it begins with.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(String);

/// The credentials for `image`, the most specific registry path first, each once. Those of the hub's former name are for all
/// images of the hub for which there are no others.
pub fn credentials<'a>(image: &str, secrets: impl IntoIterator<Item = &'a Secret>) -> Vec<Credential> {
    let Ok(name) = ImageName::parse(image) else { return vec![] };
    let mut keyring: BTreeMap<Reverse<Key>, Vec<Credential>> = BTreeMap::new();
    for (location, entry) in secrets.into_iter().flat_map(entries) {
        keyring.entry(Reverse(Key::new(&location))).or_default().push(entry.credential());
    }
    let matching: Vec<_> = keyring.iter().filter(|(Reverse(key), _)| key.matches(&name)).collect();
    let chosen: Vec<_> = match matching.is_empty() && name.is_on_hub() {
        true => keyring.iter().filter(|(Reverse(key), _)| key.0 == FORMER_HUB).collect(),
        false => matching,
    };
    let mut seen = BTreeSet::new();
    chosen.into_iter().flat_map(|(_, all)| all).filter(|c| seen.insert(*c)).cloned().collect()
}

fn entries(secret: &Secret) -> BTreeMap<String, Entry> {
    let data = secret.data.as_ref();
    match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => data
            .and_then(|d| d.get(".dockerconfigjson"))
            .and_then(|b| serde_json::from_slice::<DockerConfig>(&b.0).ok())
            .map(|c| c.auths)
            .unwrap_or_default(),
        Some("kubernetes.io/dockercfg") => data
            .and_then(|d| d.get(".dockercfg"))
            .and_then(|b| serde_json::from_slice(&b.0).ok())
            .unwrap_or_default(),
        _ => BTreeMap::new(),
    }
}

impl Entry {
    /// What stands in `auth` is what the registry's own client wrote, so it counts before a name and password beside it. A
    /// token takes the password's place, and then there may be none.
    fn credential(self) -> Credential {
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
        credential
    }
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

impl Key {
    /// A location as people write it: with a scheme or without, and with the version of the API that docker's own client puts
    /// behind the host.
    fn new(location: &str) -> Self {
        let rest = location.strip_prefix("https://").or_else(|| location.strip_prefix("http://"));
        let rest = rest.unwrap_or(location).split(['?', '#']).next().unwrap_or_default();
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = host.rsplit('@').next().unwrap_or(host);
        let path = match path.get(..4) {
            Some("/v1/" | "/v2/") => &path[3..],
            _ => path,
        };
        Self(if path == "/" { host.to_owned() } else { format!("{host}{path}") })
    }

    /// The path only has to begin like the image's: that is how far a kubelet looks.
    fn matches(&self, image: &ImageName) -> bool {
        let (host, path) = self.0.split_once('/').unwrap_or((&self.0, ""));
        host_matches(host, &image.host) && image.repository.starts_with(path)
    }
}

impl ImageName {
    fn is_on_hub(&self) -> bool {
        self.host == "docker.io"
    }
}

/// A star stands for any part of a label; ports must be equal.
fn host_matches(pattern: &str, host: &str) -> bool {
    let split = |h: &str| -> (String, String) {
        match h.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name.into(), port.into()),
            _ => (h.into(), String::new()),
        }
    };
    let ((pattern, of_pattern), (host, of_host)) = (split(pattern), split(host));
    let (p, h): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), host.split('.').collect());
    of_pattern == of_host && p.len() == h.len() && p.iter().zip(&h).all(|(p, h)| label_matches(p, h))
}

/// From left to right and never back: a secret with thousands of stars costs no more than its length.
fn label_matches(pattern: &str, label: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == label };
    let (between, end) = after.rsplit_once('*').unwrap_or(("", after));
    let Some(mut rest) = label.strip_prefix(before).and_then(|rest| rest.strip_suffix(end)) else {
        return false;
    };
    between.split('*').all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
#[path = "credentials_tests.rs"]
mod tests;
