//! What plugins answered, for as long as it is good.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use keelson_kit::hex;
use sha2::{Digest, Sha256};

use super::{Answer, CacheKind, Request};
use crate::config::CacheType;
use crate::image::{Coordinates, DockerConfig, ImageName};

/// The answers of one plugin.
#[derive(Default)]
pub struct CredentialCache(HashMap<(Base, Option<AccountKey>), Kept>);

struct Kept {
    credentials: DockerConfig,
    until: Instant,
}

#[derive(PartialEq, Eq, Hash)]
enum Base {
    Image(String),
    Registry(String),
    Global,
}

/// Whose answer it is, for plugins that are told of service accounts.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AccountKey {
    account: [String; 3],
    annotations: BTreeMap<String, String>,
    /// A digest, and only where answers are for one token.
    token: Option<String>,
}

impl AccountKey {
    pub fn new(account: &Coordinates, request: &Request, cache_type: CacheType) -> Self {
        let Coordinates { uid, namespace, name } = account.clone();
        let of_token = cache_type == CacheType::Token;
        Self {
            account: [uid, namespace, name],
            annotations: request.annotations.clone(),
            token: of_token.then(|| hex::encode(Sha256::digest(&request.token))),
        }
    }
}

impl CredentialCache {
    /// An answer for the image itself counts before one for its registry, and that before one for all.
    pub fn find(
        &self,
        image: &ImageName,
        account: Option<&AccountKey>,
        now: Instant,
    ) -> Option<DockerConfig> {
        let bases = [CacheKind::Image, CacheKind::Registry, CacheKind::Global].map(|kind| base(kind, image));
        let kept = bases
            .into_iter()
            .find_map(|base| self.0.get(&(base, account.cloned())).filter(|kept| now <= kept.until))?;
        Some(kept.credentials.clone())
    }

    pub fn keep(&mut self, image: &ImageName, account: Option<&AccountKey>, answer: &Answer, now: Instant) {
        // The only time at which it grows, and so the time to forget what is over.
        self.0.retain(|_, kept| now <= kept.until);
        let Some(until) = answer.keep.and_then(|keep| now.checked_add(keep)) else { return };
        let kept = Kept { credentials: answer.credentials.clone(), until };
        self.0.insert((base(answer.kind, image), account.cloned()), kept);
    }
}

fn base(kind: CacheKind, image: &ImageName) -> Base {
    match kind {
        CacheKind::Image => Base::Image(image.to_string()),
        CacheKind::Registry => Base::Registry(image.host.clone()),
        CacheKind::Global => Base::Global,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn image(name: &str) -> ImageName {
        ImageName::parse(name).unwrap()
    }

    fn answer(kind: CacheKind, seconds: u64) -> Answer {
        let keep = Some(Duration::from_secs(seconds)).filter(|keep| !keep.is_zero());
        Answer { kind, keep, credentials: DockerConfig::default() }
    }

    fn key(name: &str, token: &str, cache_type: CacheType) -> AccountKey {
        let account = Coordinates { uid: "u".into(), namespace: "a".into(), name: name.into() };
        AccountKey::new(&account, &Request { token: token.into(), ..Request::default() }, cache_type)
    }

    #[test]
    fn an_answer_is_found_for_what_it_is_good_for_until_it_is_over() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (kind, other_tag, same_registry, elsewhere) in [
            (CacheKind::Image, true, false, false),
            (CacheKind::Registry, true, true, false),
            (CacheKind::Global, true, true, true),
        ] {
            let mut cache = CredentialCache::default();
            cache.keep(&image("r.io/x:1"), None, &answer(kind, 10), start);
            let found = |name, seconds| cache.find(&image(name), None, at(seconds)).is_some();
            assert_eq!(found("r.io/x:2", 1), other_tag, "{kind:?}");
            assert_eq!(found("r.io/y", 1), same_registry, "{kind:?}");
            assert_eq!(found("q.io/x", 1), elsewhere, "{kind:?}");
            assert!(found("r.io/x", 10) && !found("r.io/x", 11), "{kind:?}");
        }
        let mut cache = CredentialCache::default();
        cache.keep(&image("r.io/x"), None, &answer(CacheKind::Global, 0), start);
        assert!(cache.find(&image("r.io/x"), None, start).is_none(), "that was not to be kept");
    }

    #[test]
    fn what_came_for_an_account_is_for_that_account() {
        let now = Instant::now();
        for (cache_type, another_token) in [(CacheType::ServiceAccount, true), (CacheType::Token, false)] {
            let mut cache = CredentialCache::default();
            let first = key("b", "1", cache_type);
            cache.keep(&image("r.io/x"), Some(&first), &answer(CacheKind::Global, 10), now);
            let found = |key: Option<&AccountKey>| cache.find(&image("r.io/x"), key, now).is_some();
            assert!(found(Some(&first)));
            assert!(!found(None) && !found(Some(&key("c", "1", cache_type))));
            assert_eq!(found(Some(&key("b", "2", cache_type))), another_token);
        }
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let start = Instant::now();
        let mut cache = CredentialCache::default();
        for n in 0..100 {
            let now = start + Duration::from_secs(n * 20);
            cache.keep(&image(&format!("r.io/x{n}")), None, &answer(CacheKind::Image, 10), now);
        }
        assert_eq!(cache.0.len(), 1);
    }
}
