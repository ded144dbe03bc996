//! The ConfigMaps and Secrets that pods on this node refer to, each followed by its own watch for as long as a pod holds
//! it. A node may not list them all; it may follow one by its name.

mod keeper;
mod key;
mod object;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use keelson_core::ids::PodUid;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

use crate::client::Api;
use crate::error::ApiError;
use keeper::{ObjectKeeper, ObjectState};
pub use key::{ObjectKey, ObjectKind};
use object::{CachedObject, fetch};

#[derive(Clone)]
pub struct ObjectCache {
    api: Api,
    held: Arc<Mutex<HashMap<ObjectKey, HeldObject>>>,
    changes: broadcast::Sender<ObjectKey>,
}

struct HeldObject {
    holders: HashSet<PodUid>,
    state: watch::Receiver<ObjectState>,
    task: JoinHandle<()>,
}

impl Drop for HeldObject {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ObjectCache {
    pub fn new(api: Api) -> Self {
        Self { api, held: Arc::default(), changes: broadcast::channel(256).0 }
    }

    /// Follows `keys` on behalf of a pod, from now until it releases them. Called again with another set, it is that
    /// set which is held.
    pub fn acquire(&self, pod: &PodUid, keys: impl IntoIterator<Item = ObjectKey>) {
        let keys: HashSet<ObjectKey> = keys.into_iter().collect();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let_go(&mut held, pod, &keys);
        for key in keys {
            let object = held.entry(key).or_insert_with_key(|key| self.start(key.clone()));
            object.holders.insert(pod.clone());
        }
    }

    /// Ends a pod's interest. What nobody holds any more is forgotten.
    pub fn release(&self, pod: &PodUid) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let_go(&mut held, pod, &HashSet::new());
    }

    /// The ConfigMap as last reported; None when there is none. Waits for the first answer only. Served from memory
    /// while the server is away. One that no pod holds is fetched and not kept.
    pub async fn get_config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<ConfigMap>>, ApiError> {
        match self.get(ObjectKind::ConfigMap, namespace, name).await? {
            Some(CachedObject::ConfigMap(object)) => Ok(Some(object)),
            _ => Ok(None),
        }
    }

    /// As [`Self::get_config_map`].
    pub async fn get_secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, ApiError> {
        match self.get(ObjectKind::Secret, namespace, name).await? {
            Some(CachedObject::Secret(object)) => Ok(Some(object)),
            _ => Ok(None),
        }
    }

    /// Reports every held object that appeared, changed or vanished. The channel says so to a receiver that lags behind,
    /// which then has to take everything as changed.
    pub fn changed(&self) -> broadcast::Receiver<ObjectKey> {
        self.changes.subscribe()
    }

    async fn get(
        &self,
        kind: ObjectKind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<CachedObject>, ApiError> {
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let held = {
            let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.get(&key).map(|object| object.state.clone())
        };
        let Some(mut state) = held else { return fetch(&self.api, &key).await };
        let slot =
            state.wait_for(|slot| !matches!(slot, ObjectState::Loading)).await.map(|slot| slot.clone());
        match slot {
            Ok(ObjectState::Known(object)) => Ok(object),
            Ok(ObjectState::Failed(error)) => Err(error),
            // Released while we waited.
            Ok(ObjectState::Loading) | Err(_) => fetch(&self.api, &key).await,
        }
    }

    fn start(&self, key: ObjectKey) -> HeldObject {
        let (sender, state) = watch::channel(ObjectState::Loading);
        let keeper = ObjectKeeper {
            api: self.api.clone(),
            key,
            state: sender,
            changes: self.changes.clone(),
            floor: None,
        };
        let task = tokio::spawn(async move {
            match keeper.key.kind {
                ObjectKind::ConfigMap => keeper.run::<ConfigMap>().await,
                ObjectKind::Secret => keeper.run::<Secret>().await,
            }
        });
        HeldObject { holders: HashSet::new(), state, task }
    }
}

fn let_go(held: &mut HashMap<ObjectKey, HeldObject>, pod: &PodUid, except: &HashSet<ObjectKey>) {
    held.retain(|key, object| {
        if except.contains(key) {
            return true;
        }
        !object.holders.remove(pod) || !object.holders.is_empty()
    });
}
