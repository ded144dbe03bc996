//! Who a caller is: by certificate, by token, or nobody in particular where that is allowed.

use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use keelson_apiserver::{Api, User};
use keelson_core::node_api::subject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::cache::Cache;

/// TokenReviews and decisions that are remembered.
pub(super) const REMEMBERED: usize = 1024;
/// Questions to the apiserver under way at once; further callers wait for their turn.
const ASKING: usize = 16;
/// A token that was refused is refused again without asking, but not for long: it may become good.
const REFUSED_LASTS: Duration = Duration::from_secs(10);

type TokenHash = [u8; 32];

pub(super) struct Authenticator {
    /// `None` when tokens are not taken.
    tokens: Option<TokenReviews>,
    anonymous: bool,
}

struct TokenReviews {
    api: Api,
    lasts: Duration,
    /// Apart, so that a flood of bad tokens cannot push the good ones out.
    good: Cache<TokenHash, User>,
    bad: Cache<TokenHash, ()>,
    turns: Semaphore,
}

/// What a connection brought along.
pub(super) struct Credentials<'a> {
    pub certificates: &'a [CertificateDer<'static>],
    pub clients: Option<&'a Arc<dyn ClientCertVerifier>>,
    pub headers: &'a HeaderMap,
}

impl Authenticator {
    pub fn new(tokens: Option<(Api, Duration)>, anonymous: bool) -> Self {
        let tokens = tokens.map(|(api, lasts)| TokenReviews {
            api,
            lasts,
            good: Cache::new(REMEMBERED),
            bad: Cache::new(REMEMBERED),
            turns: Semaphore::new(ASKING),
        });
        Self { tokens, anonymous }
    }

    /// None: 401. Credentials that are no good are never taken for none at all.
    pub async fn authenticate(&self, given: Credentials<'_>) -> Option<User> {
        if let Some(user) = given.clients.and_then(|clients| by_certificate(given.certificates, clients)) {
            return Some(user);
        }
        let mut refused = !given.certificates.is_empty();
        if let Some(header) = given.headers.get(AUTHORIZATION) {
            refused = true;
            if let (Some(tokens), Some(token)) = (&self.tokens, bearer(header))
                && let Some(user) = tokens.owner(token).await
            {
                return Some(user);
            }
        }
        (self.anonymous && !refused).then(anonymous)
    }
}

/// The user that a certificate names, if the authority signed it and it is valid now.
pub(super) fn by_certificate(
    chain: &[CertificateDer<'static>],
    clients: &Arc<dyn ClientCertVerifier>,
) -> Option<User> {
    let (own, intermediates) = chain.split_first()?;
    if let Err(error) = clients.verify_client_cert(own, intermediates, UnixTime::now()) {
        tracing::debug!(%error, "a client certificate was refused");
        return None;
    }
    let subject = subject(own)?;
    Some(authenticated(User { name: subject.user, groups: subject.groups, ..User::default() }))
}

fn bearer(header: &HeaderValue) -> Option<&str> {
    let (scheme, token) = header.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && !token.contains(' ')).then_some(token)
}

impl TokenReviews {
    async fn owner(&self, token: &str) -> Option<User> {
        let hash: TokenHash = Sha256::digest(token.as_bytes()).into();
        if let Some(user) = self.known(&hash) {
            return user;
        }
        let _turn = self.turns.acquire().await.ok()?;
        // Many requests with one token come at once when something scrapes; the first has asked for all of them.
        if let Some(user) = self.known(&hash) {
            return user;
        }
        match self.api.review_token(token).await {
            Ok(Some(user)) => {
                let user = authenticated(user);
                self.good.put(hash, user.clone(), self.lasts);
                Some(user)
            }
            Ok(None) => {
                self.bad.put(hash, (), REFUSED_LASTS.min(self.lasts));
                None
            }
            Err(error) => {
                tracing::warn!(%error, "a caller of the node's API is refused: whose token it has cannot be asked");
                None
            }
        }
    }

    fn known(&self, hash: &TokenHash) -> Option<Option<User>> {
        self.good.get(hash).map(Some).or_else(|| self.bad.get(hash).map(|()| None))
    }
}

fn authenticated(mut user: User) -> User {
    const GROUP: &str = "system:authenticated";
    if !user.groups.iter().any(|g| g == GROUP) {
        user.groups.push(GROUP.into());
    }
    user
}

fn anonymous() -> User {
    User { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()], ..User::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bearer_tokens_are_tokens() {
        for (header, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearer a b", None),
            ("Basic abc", None),
            ("abc", None),
        ] {
            assert_eq!(bearer(&HeaderValue::from_static(header)), expected, "{header:?}");
        }
    }

    #[tokio::test]
    async fn bad_credentials_are_not_taken_for_none() {
        let open = Authenticator::new(None, true);
        let mut headers = HeaderMap::new();
        let ask = async |headers: &HeaderMap| {
            let given = Credentials { certificates: &[], clients: None, headers };
            open.authenticate(given).await.map(|u| u.name)
        };
        assert_eq!(ask(&headers).await.as_deref(), Some("system:anonymous"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer x"));
        assert_eq!(ask(&headers).await, None);
        let closed = Authenticator::new(None, false);
        let given = Credentials { certificates: &[], clients: None, headers: &HeaderMap::new() };
        assert_eq!(closed.authenticate(given).await, None);
    }
}
