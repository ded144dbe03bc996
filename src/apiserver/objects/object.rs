//! A ConfigMap or a Secret, fetched and compared.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::core::Request;
use kube::core::params::GetParams;

use super::{ObjectKey, ObjectKind};
use crate::client::Api;
use crate::error::ApiError;
use crate::watch::Followed;

#[derive(Debug, Clone)]
pub(super) enum CachedObject {
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

/// The kinds that are cached.
pub(super) trait Cacheable: Followed + Sync {
    fn is_immutable(&self) -> bool;
    fn wrap(self) -> CachedObject;
}

impl Cacheable for ConfigMap {
    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
    fn wrap(self) -> CachedObject {
        CachedObject::ConfigMap(Arc::new(self))
    }
}

impl Cacheable for Secret {
    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
    fn wrap(self) -> CachedObject {
        CachedObject::Secret(Arc::new(self))
    }
}

pub(super) async fn fetch(api: &Api, key: &ObjectKey) -> Result<Option<CachedObject>, ApiError> {
    match key.kind {
        ObjectKind::ConfigMap => Ok(fetch_as::<ConfigMap>(api, key).await?.map(Cacheable::wrap)),
        ObjectKind::Secret => Ok(fetch_as::<Secret>(api, key).await?.map(Cacheable::wrap)),
    }
}

pub(super) async fn fetch_as<K: Cacheable>(api: &Api, key: &ObjectKey) -> Result<Option<K>, ApiError> {
    let operation = format!("get {key}");
    let request = Request::new(key.collection()).get(&key.name, &GetParams::default());
    match api.call_past_authorizer_lag::<K>(&operation, request).await {
        Ok(mut object) => {
            object.drop_bulk();
            Ok(Some(object))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

impl CachedObject {
    /// A change of labels alone is none to a volume.
    pub(super) fn has_content_of(&self, other: &Self) -> bool {
        match (self, other) {
            (CachedObject::ConfigMap(old), CachedObject::ConfigMap(new)) => {
                old.metadata.uid == new.metadata.uid
                    && old.data == new.data
                    && old.binary_data == new.binary_data
                    && old.immutable == new.immutable
            }
            (CachedObject::Secret(old), CachedObject::Secret(new)) => {
                old.metadata.uid == new.metadata.uid
                    && old.data == new.data
                    && old.type_ == new.type_
                    && old.immutable == new.immutable
            }
            _ => false,
        }
    }
}
