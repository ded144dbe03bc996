//! Tokens of service accounts, bound to the pod that uses them, kept until they are due for renewal.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use keelson_core::ids::PodUid;
use kube::core::Request;
use kube::core::params::PostParams;

use crate::call::body;
use crate::client::Api;
use crate::error::{ApiError, ErrorKind};
use crate::jitter::random_fraction;

/// Which token: of whom, for whom, and how long it should last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenSpec {
    pub namespace: String,
    pub service_account: String,
    pub pod_name: String,
    pub pod_uid: PodUid,
    /// Empty: the apiserver itself.
    pub audience: String,
    pub expiration_seconds: i64,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub token: String,
    pub expires_at: Timestamp,
    /// When a new one should be fetched: after four fifths of its life or a day, a little earlier by chance.
    pub renew_at: Timestamp,
}

impl std::fmt::Debug for Token {
    /// Without the token: it ends up in logs otherwise.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

impl Api {
    /// Asks for a new token, whatever is cached.
    pub(crate) async fn request_token(&self, spec: &TokenSpec) -> Result<Token, ApiError> {
        let TokenSpec { namespace, service_account, .. } = spec;
        let operation = format!("create token of service account {namespace}/{service_account}");
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: (!spec.audience.is_empty()).then(|| vec![spec.audience.clone()]),
                expiration_seconds: Some(spec.expiration_seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(spec.pod_name.clone()),
                    uid: Some(spec.pod_uid.to_string()),
                }),
            }),
            ..TokenRequest::default()
        };
        let body = body(&operation, &request)?;
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let request =
            Request::new(path).create_subresource("token", service_account, &PostParams::default(), body);
        let answer: TokenRequest = self.call_past_authorizer_lag(&operation, request).await?;
        let status = answer.status.unwrap_or_default();
        let (Some(token), Some(expires_at)) = (status.token, status.expiration_timestamp) else {
            return Err(ApiError::new(ErrorKind::Other, &operation, "the answer has no token"));
        };
        let expires_at = expires_at.0;
        // The server may have shortened the life that was asked for.
        let life = answer.spec.and_then(|spec| spec.expiration_seconds).unwrap_or(spec.expiration_seconds);
        Ok(Token { token, expires_at, renew_at: renewal(expires_at, life, random_fraction()) })
    }
}

fn renewal(expires_at: Timestamp, life_seconds: i64, chance: f64) -> Timestamp {
    const A_DAY: i64 = 24 * 3600;
    let issued_at = expires_at.saturating_sub(SignedDuration::from_secs(life_seconds));
    let due = (life_seconds * 4 / 5).min(A_DAY);
    let earlier = (10.0 * chance) as i64;
    match issued_at {
        Ok(issued_at) => {
            issued_at.saturating_add(SignedDuration::from_secs((due - earlier).max(0))).unwrap_or(expires_at)
        }
        Err(_) => expires_at,
    }
}

/// One token, and whose turn it is to fetch it.
type Slot = Arc<tokio::sync::Mutex<Cached>>;

#[derive(Default)]
struct Cached {
    token: Option<Token>,
    /// Its renewal fails, and was said to.
    failing: bool,
}

/// The tokens of all pods on this node.
#[derive(Clone)]
pub struct TokenCache {
    api: Api,
    slots: Arc<Mutex<HashMap<TokenSpec, Slot>>>,
}

impl TokenCache {
    pub fn new(api: Api) -> Self {
        Self { api, slots: Arc::default() }
    }

    /// A token that is good now. While a renewal fails, the old one is given out for as long as it lasts.
    pub async fn get(&self, spec: &TokenSpec) -> Result<Token, ApiError> {
        let slot = self
            .slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(spec.clone())
            .or_default()
            .clone();
        // Held during the request: two volumes of a pod that want the same token ask once.
        let mut cached = slot.lock().await;
        let now = Timestamp::now();
        if let Some(token) = cached.token.as_ref().filter(|token| now < token.renew_at) {
            return Ok(token.clone());
        }
        match self.api.request_token(spec).await {
            Ok(token) => {
                *cached = Cached { token: Some(token.clone()), failing: false };
                Ok(token)
            }
            Err(error) => {
                let Some(token) = cached.token.clone().filter(|token| now < token.expires_at) else {
                    return Err(error);
                };
                // Once: there may be hundreds of them, each tried again and again until the server is back.
                if !std::mem::replace(&mut cached.failing, true) {
                    let account = format!("{}/{}", spec.namespace, spec.service_account);
                    tracing::warn!(%error, account, pod = spec.pod_name, expires_at = %token.expires_at, "token not renewed; the old one is used on");
                }
                Ok(token)
            }
        }
    }

    /// Forgets a pod's tokens.
    pub fn release(&self, pod: &PodUid) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).retain(|spec, _| spec.pod_uid != *pod);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_after_four_fifths_of_its_life_or_a_day() {
        let issued: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let cases = [
            ("an hour", 3600, 0.0, 2880),
            ("an hour, by chance earlier", 3600, 0.99, 2871),
            ("a year: after a day", 365 * 86400, 0.0, 86400),
            ("ten minutes", 600, 0.0, 480),
        ];
        for (name, life, chance, expected) in cases {
            let expires_at = issued + SignedDuration::from_secs(life);
            let renew_at = renewal(expires_at, life, chance);
            assert_eq!(renew_at.duration_since(issued).as_secs(), expected, "{name}");
        }
    }
}
