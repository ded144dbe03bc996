//! A keyring: which of the credentials that were given are for an image, in the order in which they are tried.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::credentials::{Credential, DockerConfig};
use super::name::{FORMER_HUB, ImageName};

/// An object of the apiserver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coordinates {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// Whose a credential is, and so who else may use what was pulled with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The node itself: its own file, or a plugin that was not told of the pod's service account.
    Node,
    Secret(Coordinates),
    ServiceAccount(Coordinates),
}

/// A credential that is for the image that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedCredential {
    pub credential: Credential,
    /// As records of pulled images hold it.
    pub hash: String,
    pub source: Source,
}

#[derive(Default)]
pub struct Keyring(BTreeMap<Reverse<Key>, Vec<OwnedCredential>>);

/// A registry, or a part of one, that a credential was given for. Their order is that in which they are tried: backwards by
/// their text, so that a longer path comes before the shorter one that it begins with.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(String);

impl Keyring {
    pub fn add(&mut self, source: &Source, config: DockerConfig) {
        for (location, (credential, hash)) in config.into_credentials() {
            let owned = OwnedCredential { credential, hash, source: source.clone() };
            self.0.entry(Reverse(Key::new(&location))).or_default().push(owned);
        }
    }

    /// Those for `image`, the most specific registry path first. Those of the hub's former name are for all images of the hub
    /// for which there are no others.
    pub fn credentials(&self, image: &ImageName) -> Vec<OwnedCredential> {
        let matching: Vec<_> = self.0.iter().filter(|(Reverse(key), _)| key.matches(image)).collect();
        let chosen: Vec<_> = match matching.is_empty() && image.is_on_hub() {
            true => self.0.iter().filter(|(Reverse(key), _)| key.0 == FORMER_HUB).collect(),
            false => matching,
        };
        chosen.into_iter().flat_map(|(_, all)| all).cloned().collect()
    }
}

/// Each credential once, whoever else has it too: what a registry refused it refuses again.
pub fn attempts(found: &[OwnedCredential]) -> Vec<&OwnedCredential> {
    let mut seen = BTreeSet::new();
    found.iter().filter(|c| seen.insert(&c.credential)).collect()
}

/// Whether a credential provider's pattern is for an image: a host with stars, and how the path begins.
pub fn pattern_matches(pattern: &str, image: &ImageName) -> bool {
    Key(pattern.to_owned()).matches(image)
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
#[path = "keyring_tests.rs"]
mod tests;
