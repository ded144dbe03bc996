//! credentialprovider.kubelet.k8s.io: the question on a plugin's stdin, the answer on its stdout.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::{CacheType, CredentialProvider, Period};
use crate::image::DockerConfig;

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Request {
    /// In full, without tag and digest.
    pub image: String,
    /// Empty for plugins that work without one, and for pods without an account.
    pub token: String,
    pub annotations: BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    kind: &'a str,
    api_version: &'a str,
    image: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    service_account_token: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    service_account_annotations: &'a BTreeMap<String, String>,
}

/// What a plugin gave, and for how much it is good.
#[derive(Clone)]
pub struct Answer {
    pub kind: CacheKind,
    /// None: it is not kept.
    pub keep: Option<std::time::Duration>,
    pub credentials: DockerConfig,
}

/// What an answer is good for: the image that was asked about, its registry, or all that the plugin is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum CacheKind {
    Image,
    Registry,
    Global,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    kind: Option<String>,
    api_version: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Response {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    cache_key_type: CacheKind,
    cache_duration: Option<Period>,
    auth: Option<BTreeMap<String, Login>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl Request {
    pub fn encode(&self, provider: &CredentialProvider) -> String {
        let question = Question {
            kind: "CredentialProviderRequest",
            api_version: &provider.api_version,
            image: &self.image,
            service_account_token: &self.token,
            service_account_annotations: &self.annotations,
        };
        serde_json::to_string(&question).map(|text| text + "\n").unwrap_or_default()
    }
}

impl Answer {
    /// The error says what is wrong without quoting the answer, which is secret.
    pub fn decode(text: &[u8], provider: &CredentialProvider, request: &Request) -> Result<Self, String> {
        let head: Head = serde_json::from_slice(text).map_err(|e| unreadable("is not JSON", &e))?;
        let (kind, version) = (head.kind.unwrap_or_default(), head.api_version.unwrap_or_default());
        if kind != "CredentialProviderResponse" || version != provider.api_version {
            let (kind, version) = (shown(&kind), shown(&version));
            let wanted = &provider.api_version;
            return Err(format!(
                "its answer is a {kind:?} of {version:?}, and not a CredentialProviderResponse of {wanted}"
            ));
        }
        let response: Response = serde_json::from_slice(text)
            .map_err(|e| unreadable("does not have the fields of a CredentialProviderResponse", &e))?;
        let mut credentials = DockerConfig::default();
        for (location, login) in response.auth.unwrap_or_default() {
            let of_token = provider.token.as_ref().is_some_and(|t| t.cache_type == CacheType::Token);
            if !request.token.is_empty() && login.password == request.token && !of_token {
                return Err(
                    "it gave the service account's token back as the password, which only a provider \
                            with cacheType: Token may"
                        .into(),
                );
            }
            credentials = credentials.with_password(location, login.username, login.password);
        }
        let keep = response.cache_duration.unwrap_or(provider.default_cache_duration).get();
        Ok(Self {
            kind: response.cache_key_type,
            keep: Some(keep).filter(|keep| !keep.is_zero()),
            credentials,
        })
    }
}

fn unreadable(problem: &str, error: &serde_json::Error) -> String {
    format!("its answer {problem}, at line {} column {}", error.line(), error.column())
}

/// As much of a word as is worth a look.
fn shown(word: &str) -> String {
    word.chars().take(64).collect()
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
