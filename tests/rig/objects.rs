//! Waiting for an API object, fed by a watch.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kube::Api;
use kube::runtime::wait::await_condition;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Waits until the object is there and `holds` says so. When time runs out the error shows its last state.
pub async fn wait_for<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    limit: Duration,
    holds: impl Fn(&K) -> bool,
) -> Result<K>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Serialize + Send + Sync + 'static,
{
    let last: Arc<Mutex<Option<K>>> = Arc::default();
    let seen = Arc::clone(&last);
    let condition = move |object: Option<&K>| {
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = object.cloned();
        object.is_some_and(&holds)
    };
    let waited = tokio::time::timeout(limit, await_condition(api.clone(), name, condition)).await;
    let last = last.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match waited {
        Ok(outcome) => outcome?.with_context(|| format!("{name} went away while waiting for: {what}")),
        Err(_) => {
            Err(anyhow!("{name}: {what}: not within {} s; it is {}", limit.as_secs(), shown(last.as_ref())))
        }
    }
}

/// Waits until no object of that name is there, or another one of the same name.
pub async fn wait_gone<K>(api: &Api<K>, name: &str, uid: Option<&str>, limit: Duration) -> Result<()>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Serialize + Send + Sync + 'static,
{
    let uid = uid.map(str::to_owned);
    let last: Arc<Mutex<Option<K>>> = Arc::default();
    let seen = Arc::clone(&last);
    let condition = move |object: Option<&K>| {
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = object.cloned();
        object.is_none_or(|o| uid.is_some() && o.meta().uid != uid)
    };
    match tokio::time::timeout(limit, await_condition(api.clone(), name, condition)).await {
        Ok(outcome) => outcome.map(drop).map_err(Into::into),
        Err(_) => {
            let last = last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Err(anyhow!("{name} is still there after {} s: {}", limit.as_secs(), shown(last.as_ref())))
        }
    }
}

fn shown<K: Serialize>(object: Option<&K>) -> String {
    let Some(value) = object.and_then(|o| serde_json::to_value(o).ok()) else { return "not there".into() };
    let deleted = value["metadata"]["deletionTimestamp"]
        .as_str()
        .map(|t| format!("deleted at {t}, "))
        .unwrap_or_default();
    format!("{deleted}{}", value.get("status").cloned().unwrap_or_default())
}
