//! The RuntimeClasses that pods name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures::StreamExt as _;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::core::Request;
use kube::core::params::GetParams;
use tokio::task::JoinHandle;

use crate::client::Api;
use crate::error::ApiError;
use crate::rate_limit::Priority;
use crate::watch::{Followed as _, Scope, Update};

const PATH: &str = "/apis/node.k8s.io/v1/runtimeclasses";

/// RuntimeClasses by name. They are followed from the first pod on that names one; most nodes never see such a pod.
#[derive(Clone)]
pub struct RuntimeClassCache {
    api: Api,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    known: Arc<Mutex<Classes>>,
    follower: OnceLock<AbortOnDrop>,
}

type Classes = HashMap<String, Arc<RuntimeClass>>;

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RuntimeClassCache {
    pub fn new(api: Api) -> Self {
        Self { api, shared: Arc::default() }
    }

    /// None when there is no such class. One that the watch has not brought yet is asked for.
    pub async fn get(&self, name: &str) -> Result<Option<Arc<RuntimeClass>>, ApiError> {
        self.shared
            .follower
            .get_or_init(|| AbortOnDrop(tokio::spawn(keep(self.api.clone(), self.shared.known.clone()))));
        let known = lock(&self.shared.known).get(name).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let request = Request::new(PATH).get(name, &GetParams::default());
        let operation = format!("get runtimeclass {name}");
        match self.api.call::<RuntimeClass>(&operation, Priority::Normal, request).await {
            Ok(mut class) => {
                class.drop_bulk();
                Ok(Some(Arc::new(class)))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

async fn keep(api: Api, known: Arc<Mutex<Classes>>) {
    let mut updates = std::pin::pin!(api.follow::<RuntimeClass>(Scope::new("runtimeclasses", PATH)));
    while let Some(update) = updates.next().await {
        match update {
            Update::Synced { items, .. } => *lock(&known) = items.into_iter().map(named).collect(),
            Update::Applied(class) => lock(&known).extend([named(class)]),
            Update::Deleted(class) => drop(lock(&known).remove(&named(class).0)),
            Update::Disconnected(error) => {
                tracing::debug!(%error, "going on with the runtimeclasses that are known")
            }
        }
    }
}

fn named(class: RuntimeClass) -> (String, Arc<RuntimeClass>) {
    (class.metadata.name.clone().unwrap_or_default(), Arc::new(class))
}

fn lock(known: &Mutex<Classes>) -> std::sync::MutexGuard<'_, Classes> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}
