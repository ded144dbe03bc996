//! Credential provider plugins: what they are asked, what their answers mean, and how long those are kept. Running them is left to
//! the agent.

mod cache;
mod protocol;

pub use cache::{AccountKey, CredentialCache};
pub use protocol::{Answer, CacheKind, Request};

use crate::config::TokenAttributes;
use std::collections::BTreeMap;

/// Those of a service account's annotations that a plugin is told. `None`: one that it requires is missing, so the account is
/// none of its business.
pub fn annotations_for(
    token: &TokenAttributes,
    annotations: &BTreeMap<String, String>,
) -> Option<BTreeMap<String, String>> {
    let entry = |key: &String| Some((key.clone(), annotations.get(key)?.clone()));
    let mut told: BTreeMap<_, _> = token.required_annotations.iter().map(entry).collect::<Option<_>>()?;
    told.extend(token.optional_annotations.iter().filter_map(entry));
    Some(told)
}
