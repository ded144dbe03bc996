//! What a caller may do: as the apiserver decides, remembered for a while.

use std::time::Duration;

use keelson_apiserver::{Api, ApiError, User};
use keelson_core::node_api::Access;

use super::authenticate::REMEMBERED;
use super::cache::Cache;

pub(super) enum Authorizer {
    /// authorization.mode AlwaysAllow.
    Everything,
    /// There is nobody to be asked.
    Nothing,
    Ask(Box<AccessReviews>),
}

pub(super) struct AccessReviews {
    api: Api,
    allowed_lasts: Duration,
    denied_lasts: Duration,
    decisions: Cache<Question, bool>,
}

type Question = (User, String, &'static str);

impl Authorizer {
    pub fn ask(api: Api, allowed_lasts: Duration, denied_lasts: Duration) -> Self {
        Self::Ask(Box::new(AccessReviews {
            api,
            allowed_lasts,
            denied_lasts,
            decisions: Cache::new(REMEMBERED),
        }))
    }

    /// Allowed when one of the subresources is.
    pub async fn allows(&self, user: &User, access: &Access) -> Result<bool, ApiError> {
        let asking = match self {
            Self::Everything => return Ok(true),
            Self::Nothing => return Ok(false),
            Self::Ask(asking) => asking,
        };
        for subresource in access.subresources {
            if asking.allows(user, &access.verb, subresource).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl AccessReviews {
    async fn allows(&self, user: &User, verb: &str, subresource: &'static str) -> Result<bool, ApiError> {
        let question = (user.clone(), verb.to_owned(), subresource);
        if let Some(decision) = self.decisions.get(&question) {
            return Ok(decision);
        }
        let allowed = self.api.review_access(user, verb, subresource).await?;
        let lasts = if allowed { self.allowed_lasts } else { self.denied_lasts };
        self.decisions.put(question, allowed, lasts);
        Ok(allowed)
    }
}
