//! One object, kept up to date by a watch of its own.

use futures::StreamExt as _;
use keelson_kit::backoff::Backoff;
use tokio::sync::{broadcast, watch};

use super::ObjectKey;
use super::object::{Cacheable, CachedObject, fetch_as};
use crate::client::Api;
use crate::error::ApiError;
use crate::jitter::random_fraction;
use crate::watch::{Scope, Update};

#[derive(Debug, Clone)]
pub(super) enum ObjectState {
    Loading,
    /// None: there is no such object.
    Known(Option<CachedObject>),
    /// Never seen yet, and why. It is being tried again.
    Failed(ApiError),
}

/// Keeps one object up to date.
pub(super) struct ObjectKeeper {
    pub(super) api: Api,
    pub(super) key: ObjectKey,
    pub(super) state: watch::Sender<ObjectState>,
    pub(super) changes: broadcast::Sender<ObjectKey>,
    /// The version of the first fetch. The list after it comes from the server's cache, which may lag behind: until the
    /// watch has caught up to this version, what it reports is older than what is known already, and skipped.
    pub(super) floor: Option<u64>,
}

impl ObjectKeeper {
    pub(super) async fn run<K: Cacheable>(mut self) {
        // A get is answered sooner than a list, and a pod may be waiting for this to start.
        let first = self.first::<K>().await;
        let is_final = first.as_ref().is_some_and(Cacheable::is_immutable);
        self.floor = first.as_ref().and_then(|object| version_of(object));
        self.publish(first);
        if is_final {
            return;
        }
        let scope = Scope::new(self.key.to_string(), self.key.collection())
            .with_fields(format!("metadata.name={}", self.key.name))
            .first_from_cache()
            .resuming_after_outage();
        let mut updates = std::pin::pin!(self.api.follow::<K>(scope));
        while let Some(update) = updates.next().await {
            let (object, version) = match update {
                Update::Synced { mut items, version } => (items.pop(), version.parse().ok()),
                Update::Applied(object) => {
                    let version = version_of(&object);
                    (Some(object), version)
                }
                Update::Deleted(object) => (None, version_of(&object)),
                Update::Disconnected(error) => {
                    tracing::debug!(%error, "serving what is known");
                    continue;
                }
            };
            if self.floor.is_some_and(|floor| version.is_some_and(|version: u64| version < floor)) {
                continue;
            }
            self.floor = None;
            let is_final = object.as_ref().is_some_and(Cacheable::is_immutable);
            self.publish(object);
            if is_final {
                // It can only be deleted now, and a pod that runs with it keeps what it has.
                return;
            }
        }
    }

    async fn first<K: Cacheable>(&self) -> Option<K> {
        let mut backoff = Backoff::default();
        loop {
            match fetch_as::<K>(&self.api, &self.key).await {
                Ok(object) => return object,
                Err(error) => {
                    backoff.fail(self.api.timings().retry);
                    let pause = backoff.jittered(random_fraction()).max(error.retry_after());
                    tracing::debug!(%error, "trying again");
                    self.state.send_replace(ObjectState::Failed(error));
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn publish<K: Cacheable>(&self, object: Option<K>) {
        let object = object.map(Cacheable::wrap);
        let changed = match (&*self.state.borrow(), &object) {
            (ObjectState::Known(None), None) => false,
            (ObjectState::Known(Some(old)), Some(new)) => !old.has_content_of(new),
            _ => true,
        };
        if changed {
            self.state.send_replace(ObjectState::Known(object));
            // Nobody listening is fine.
            let _ = self.changes.send(self.key.clone());
        }
    }
}

fn version_of<K: Cacheable>(object: &K) -> Option<u64> {
    object.resource_version()?.parse().ok()
}
