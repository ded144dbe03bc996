//! The ConfigMaps and Secrets that pods on this node refer to, each followed by its own watch for as long as a pod holds
//! it. A node may not list them all; it may follow one by its name.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use keelson_core::ids::PodUid;
use kube::core::Request;
use kube::core::params::GetParams;
use tokio::sync::{broadcast, watch};
use tokio::task::JoinHandle;

use crate::client::Api;
use crate::error::{ApiError, ErrorKind};
use crate::follow::{Followed, Scope, Update, follow, forget_bulk};
use crate::pace::BackOff;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    ConfigMap,
    Secret,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    pub kind: ObjectKind,
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            ObjectKind::ConfigMap => "configmap",
            ObjectKind::Secret => "secret",
        };
        write!(f, "{kind} {}/{}", self.namespace, self.name)
    }
}

#[derive(Clone)]
pub struct ObjectCache {
    api: Api,
    entries: Arc<Mutex<HashMap<ObjectKey, Entry>>>,
    changes: broadcast::Sender<ObjectKey>,
}

struct Entry {
    holders: HashSet<PodUid>,
    state: watch::Receiver<Slot>,
    task: JoinHandle<()>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug, Clone)]
enum Slot {
    Loading,
    /// None: there is no such object.
    Known(Option<Object>),
    /// Never seen yet, and why. It is being tried again.
    Failed(ApiError),
}

#[derive(Debug, Clone)]
enum Object {
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

impl ObjectCache {
    pub fn new(api: Api) -> Self {
        Self { api, entries: Arc::default(), changes: broadcast::channel(256).0 }
    }

    /// Follows `keys` on behalf of a pod, from now until it releases them. Called again with another set, it is that
    /// set which is held.
    pub fn acquire(&self, pod: &PodUid, keys: impl IntoIterator<Item = ObjectKey>) {
        let keys: HashSet<ObjectKey> = keys.into_iter().collect();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let_go(&mut entries, pod, &keys);
        for key in keys {
            let entry = entries.entry(key).or_insert_with_key(|key| self.start(key.clone()));
            entry.holders.insert(pod.clone());
        }
    }

    /// Ends a pod's interest. What nobody holds any more is forgotten.
    pub fn release(&self, pod: &PodUid) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let_go(&mut entries, pod, &HashSet::new());
    }

    /// The ConfigMap as last heard of; None when there is none. Waits for the first answer only. Served from memory
    /// while the server is away. One that no pod holds is fetched and not kept.
    pub async fn get_config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<ConfigMap>>, ApiError> {
        match self.get(ObjectKind::ConfigMap, namespace, name).await? {
            Some(Object::ConfigMap(object)) => Ok(Some(object)),
            _ => Ok(None),
        }
    }

    /// As [`Self::get_config_map`].
    pub async fn get_secret(&self, namespace: &str, name: &str) -> Result<Option<Arc<Secret>>, ApiError> {
        match self.get(ObjectKind::Secret, namespace, name).await? {
            Some(Object::Secret(object)) => Ok(Some(object)),
            _ => Ok(None),
        }
    }

    /// Tells of every held object that appeared, changed or vanished. Whoever lags behind hears so from the channel,
    /// and then has to take everything as changed.
    pub fn changed(&self) -> broadcast::Receiver<ObjectKey> {
        self.changes.subscribe()
    }

    async fn get(&self, kind: ObjectKind, namespace: &str, name: &str) -> Result<Option<Object>, ApiError> {
        let key = ObjectKey { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        let held = {
            let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.get(&key).map(|entry| entry.state.clone())
        };
        let Some(mut state) = held else { return fetch(&self.api, &key).await };
        let slot = state.wait_for(|slot| !matches!(slot, Slot::Loading)).await.map(|slot| slot.clone());
        match slot {
            Ok(Slot::Known(object)) => Ok(object),
            Ok(Slot::Failed(error)) => Err(error),
            // Released while we waited.
            Ok(Slot::Loading) | Err(_) => fetch(&self.api, &key).await,
        }
    }

    fn start(&self, key: ObjectKey) -> Entry {
        let (sender, state) = watch::channel(Slot::Loading);
        let keeper =
            Keeper { api: self.api.clone(), key, state: sender, changes: self.changes.clone(), floor: None };
        let task = tokio::spawn(async move {
            match keeper.key.kind {
                ObjectKind::ConfigMap => keeper.run::<ConfigMap>().await,
                ObjectKind::Secret => keeper.run::<Secret>().await,
            }
        });
        Entry { holders: HashSet::new(), state, task }
    }
}

fn let_go(entries: &mut HashMap<ObjectKey, Entry>, pod: &PodUid, except: &HashSet<ObjectKey>) {
    entries.retain(|key, entry| {
        if except.contains(key) {
            return true;
        }
        !entry.holders.remove(pod) || !entry.holders.is_empty()
    });
}

async fn fetch(api: &Api, key: &ObjectKey) -> Result<Option<Object>, ApiError> {
    match key.kind {
        ObjectKind::ConfigMap => Ok(fetch_as::<ConfigMap>(api, key).await?.map(Kept::wrap)),
        ObjectKind::Secret => Ok(fetch_as::<Secret>(api, key).await?.map(Kept::wrap)),
    }
}

async fn fetch_as<K: Kept>(api: &Api, key: &ObjectKey) -> Result<Option<K>, ApiError> {
    let operation = format!("get {key}");
    let request = Request::new(collection(key)).get(&key.name, &GetParams::default());
    match api.call_past_authorizer_lag::<K>(&operation, request).await {
        Ok(mut object) => {
            forget_bulk(object.meta());
            Ok(Some(object))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn collection(key: &ObjectKey) -> String {
    let resource = match key.kind {
        ObjectKind::ConfigMap => "configmaps",
        ObjectKind::Secret => "secrets",
    };
    format!("/api/v1/namespaces/{}/{resource}", key.namespace)
}

trait Kept: Followed + Sync + k8s_openapi::Metadata<Ty = ObjectMeta> {
    fn is_immutable(&self) -> bool;
    fn wrap(self) -> Object;
}

impl Kept for ConfigMap {
    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
    fn wrap(self) -> Object {
        Object::ConfigMap(Arc::new(self))
    }
}

impl Kept for Secret {
    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
    fn wrap(self) -> Object {
        Object::Secret(Arc::new(self))
    }
}

/// Keeps one object up to date.
struct Keeper {
    api: Api,
    key: ObjectKey,
    state: watch::Sender<Slot>,
    changes: broadcast::Sender<ObjectKey>,
    /// The version of the first fetch. The list after it comes from the server's cache and may be older; what is, is
    /// not believed until the watch has caught up.
    floor: Option<u64>,
}

impl Keeper {
    async fn run<K: Kept>(mut self) {
        // A get is answered sooner than a list, and a pod may be waiting for this to start.
        let first = self.first::<K>().await;
        let is_final = first.as_ref().is_some_and(Kept::is_immutable);
        self.floor = first.as_ref().and_then(|object| version_of(object));
        self.tell(first);
        if is_final {
            return;
        }
        let scope = Scope {
            what: self.key.to_string(),
            path: collection(&self.key),
            field_selector: Some(format!("metadata.name={}", self.key.name)),
            from_cache: true,
            relist_after_outage: false,
        };
        let mut updates = std::pin::pin!(follow::<K>(self.api.clone(), scope));
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
            let is_final = object.as_ref().is_some_and(Kept::is_immutable);
            self.tell(object);
            if is_final {
                // It can only be deleted now, and a pod that runs with it keeps what it has.
                return;
            }
        }
    }

    async fn first<K: Kept>(&self) -> Option<K> {
        let timings = self.api.timings();
        let mut back_off = BackOff::new(timings.retry_first, timings.retry_cap);
        loop {
            match fetch_as::<K>(&self.api, &self.key).await {
                Ok(object) => return object,
                Err(error) => {
                    let pause = match error.kind {
                        ErrorKind::TooManyRequests { retry_after } => back_off.next().max(retry_after),
                        _ => back_off.next(),
                    };
                    tracing::debug!(%error, "trying again");
                    self.state.send_replace(Slot::Failed(error));
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn tell<K: Kept>(&self, object: Option<K>) {
        let object = object.map(Kept::wrap);
        let changed = match (&*self.state.borrow(), &object) {
            (Slot::Known(None), None) => false,
            (Slot::Known(Some(old)), Some(new)) => !same(old, new),
            _ => true,
        };
        if changed {
            self.state.send_replace(Slot::Known(object));
            // Nobody listening is fine.
            let _ = self.changes.send(self.key.clone());
        }
    }
}

fn version_of<K: Kept>(object: &K) -> Option<u64> {
    object.metadata().resource_version.as_ref()?.parse().ok()
}

/// Same content: a change of labels alone is no news to a volume.
fn same(old: &Object, new: &Object) -> bool {
    match (old, new) {
        (Object::ConfigMap(old), Object::ConfigMap(new)) => {
            old.metadata.uid == new.metadata.uid
                && old.data == new.data
                && old.binary_data == new.binary_data
                && old.immutable == new.immutable
        }
        (Object::Secret(old), Object::Secret(new)) => {
            old.metadata.uid == new.metadata.uid
                && old.data == new.data
                && old.type_ == new.type_
                && old.immutable == new.immutable
        }
        _ => false,
    }
}
