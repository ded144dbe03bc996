//! Which credentials belong to an image: the dockerconfigjson and dockercfg secrets that a pod names.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Secret};
use serde::Deserialize;

use crate::plan::PlannedEvent;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Credential {
    pub username: String,
    pub password: String,
    /// As the secret's `auth` field holds it (base64 of user:password), passed on undecoded when that is all there is.
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

/// The credentials for `image`, the most specific registry path first, each once.
pub fn credentials<'a>(image: &str, secrets: impl IntoIterator<Item = &'a Secret>) -> Vec<Credential> {
    let (host, path) = split(image);
    let mut found: Vec<(usize, Credential)> = vec![];
    for secret in secrets {
        for (key, entry) in entries(secret) {
            let Some(weight) = matches(&key, &host, &path) else { continue };
            let credential = Credential {
                username: entry.username,
                password: entry.password,
                auth: entry.auth,
                identity_token: entry.identitytoken,
                registry_token: entry.registrytoken,
            };
            if !found.iter().any(|(_, c)| *c == credential) {
                found.push((weight, credential));
            }
        }
    }
    found.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    found.into_iter().map(|(_, c)| c).collect()
}

/// That some of a pod's secrets are missing: its images may still be pulled without them.
pub fn missing_secrets<T>(pod: &Pod, found: &BTreeMap<String, T>) -> Option<PlannedEvent> {
    let named = pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten()).map(|r| r.name.as_str());
    let missing: Vec<&str> = named.filter(|name| !name.is_empty() && !found.contains_key(*name)).collect();
    let message = || {
        let names = missing.join(", ");
        format!(
            "Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed."
        )
    };
    (!missing.is_empty()).then(|| PlannedEvent::warning("FailedToRetrieveImagePullSecret", message()))
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

/// The registry host and the repository path of an image name; a name without a host is Docker Hub's.
fn split(image: &str) -> (String, String) {
    let image = image.split('@').next().unwrap_or(image);
    match image.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
            (first.into(), rest.into())
        }
        _ => ("index.docker.io".into(), image.into()),
    }
}

/// How specific a key of the secret is for this image; `None` if it is for another one.
fn matches(key: &str, host: &str, path: &str) -> Option<usize> {
    let key = key.trim_start_matches("https://").trim_start_matches("http://");
    let key = key.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches("/v2");
    let (key_host, key_path) = key.split_once('/').unwrap_or((key, ""));
    let key_host = if key_host == "docker.io" { "index.docker.io" } else { key_host };
    if !host_matches(key_host, host) {
        return None;
    }
    let inside = path
        .strip_prefix(key_path)
        .is_some_and(|rest| key_path.is_empty() || rest.is_empty() || rest.starts_with(['/', ':']));
    inside.then_some(key.len())
}

/// A star stands for one label, or part of one; ports must be equal.
fn host_matches(pattern: &str, host: &str) -> bool {
    let port = |h: &str| h.rsplit_once(':').map(|(_, p)| p.to_owned());
    let name = |h: &str| h.split(':').next().unwrap_or_default().to_owned();
    if port(pattern) != port(host) {
        return false;
    }
    let (pattern, host) = (name(pattern), name(host));
    let (p, h): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), host.split('.').collect());
    p.len() == h.len() && p.iter().zip(&h).all(|(p, h)| label_matches(p, h))
}

fn label_matches(pattern: &str, label: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == label,
        Some((before, after)) => {
            label.len() >= before.len() + after.len() && label.starts_with(before) && label.ends_with(after)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    fn secret(keys: &[&str]) -> Secret {
        let auths: BTreeMap<_, _> = keys
            .iter()
            .map(|k| (k.to_string(), serde_json::json!({"username": k, "password": "p"})))
            .collect();
        let text = serde_json::json!({ "auths": auths }).to_string();
        Secret {
            type_: Some("kubernetes.io/dockerconfigjson".into()),
            data: Some([(".dockerconfigjson".to_owned(), ByteString(text.into_bytes()))].into()),
            ..Default::default()
        }
    }

    #[test]
    fn missing_secrets_are_named_once_all_together() {
        let pod = |names: &[&str]| -> Pod {
            let refs: Vec<_> = names.iter().map(|n| serde_json::json!({"name": n})).collect();
            serde_json::from_value(serde_json::json!({"spec": {"containers": [], "imagePullSecrets": refs}}))
                .unwrap()
        };
        let found = BTreeMap::from([("there".to_owned(), ())]);
        for (names, expected) in [
            (&[][..], None),
            (&["there", ""], None),
            (
                &["one", "there", "two"],
                Some(
                    "Unable to retrieve some image pull secrets (one, two); attempting to pull the image may not succeed.",
                ),
            ),
        ] {
            let event = missing_secrets(&pod(names), &found);
            assert_eq!(event.as_ref().map(|e| e.message.as_str()), expected);
            assert!(event.is_none_or(|e| e.warning && e.reason == "FailedToRetrieveImagePullSecret"));
        }
    }

    #[test]
    fn credentials_go_to_the_registries_they_were_given_for() {
        for (name, keys, image, expected) in [
            ("a host", vec!["reg.example"], "reg.example/a/b:1", vec!["reg.example"]),
            ("another host", vec!["reg.example"], "other.example/a", vec![]),
            ("a longer path wins", vec!["r.io", "r.io/team"], "r.io/team/app", vec!["r.io/team", "r.io"]),
            ("a path is not a prefix of a word", vec!["r.io/te"], "r.io/team/app", vec![]),
            (
                "the hub has many names",
                vec!["https://index.docker.io/v1/"],
                "busybox",
                vec!["https://index.docker.io/v1/"],
            ),
            ("ports count", vec!["r.io:5000"], "r.io/app", vec![]),
            ("a star is one label", vec!["*.r.io"], "eu.r.io/app", vec!["*.r.io"]),
            ("and only one", vec!["*.r.io"], "a.eu.r.io/app", vec![]),
            ("a digest is no path", vec!["r.io"], "r.io/app@sha256:00", vec!["r.io"]),
        ] {
            let got = credentials(image, [&secret(&keys)]);
            let got: Vec<_> = got.iter().map(|c| c.username.as_str()).collect();
            assert_eq!(got, expected, "{name}");
        }
    }

    #[test]
    fn a_garbled_secret_gives_nothing_and_harms_nothing() {
        let mut bad = secret(&["r.io"]);
        bad.data = Some([(".dockerconfigjson".to_owned(), ByteString(b"{".to_vec()))].into());
        assert!(credentials("r.io/app", [&bad]).is_empty());
    }
}
