//! Claims of pods, and the persistent volumes that they are bound to. Asked for when a pod is set up: neither changes
//! under a pod that runs in a way that it would notice.

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Request;
use kube::core::params::GetParams;
use serde::de::DeserializeOwned;

use crate::client::Api;
use crate::error::ApiError;
use crate::rate_limit::Priority;

impl Api {
    /// None when there is no such claim.
    pub async fn get_claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<PersistentVolumeClaim>, ApiError> {
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        self.get_slim(&path, &format!("get persistentvolumeclaim {namespace}/{name}"), name).await
    }

    /// None when there is no such volume.
    pub async fn get_persistent_volume(&self, name: &str) -> Result<Option<PersistentVolume>, ApiError> {
        self.get_slim("/api/v1/persistentvolumes", &format!("get persistentvolume {name}"), name).await
    }

    async fn get_slim<K>(&self, path: &str, operation: &str, name: &str) -> Result<Option<K>, ApiError>
    where
        K: DeserializeOwned + Metadata<Ty = ObjectMeta>,
    {
        let request = Request::new(path).get(name, &GetParams::default());
        match self.call::<K>(operation, Priority::Normal, request).await {
            Ok(mut object) => {
                object.metadata_mut().managed_fields = None;
                Ok(Some(object))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
