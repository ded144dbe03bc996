//! Writing about pods: their status, their end, and the mirrors of static ones.

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::core::Request;
use kube::core::params::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::call::body;
use crate::client::Api;
use crate::error::{ApiError, ErrorKind};
use crate::merge_patch;
use crate::rate_limit::Priority;
use crate::watch::Followed as _;

impl Api {
    /// Changes a pod's status from `old` to `new`, sending only the difference. The uid goes along, so that a pod which
    /// took the same name since is not written to: that is a Conflict, as a deleted one is NotFound. With nothing to
    /// change nothing is sent, and None is returned.
    pub async fn patch_pod_status(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        old: &PodStatus,
        new: &PodStatus,
    ) -> Result<Option<Pod>, ApiError> {
        let operation = format!("patch status of pod {namespace}/{name}");
        let Some(status) = merge_patch::diff(&value(&operation, old)?, &value(&operation, new)?) else {
            return Ok(None);
        };
        let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
        let request = pods(namespace).patch_subresource("status", name, &PatchParams::default(), &patch);
        let mut pod: Pod = self.call(&operation, Priority::Normal, request).await.map_err(another_uid)?;
        pod.drop_bulk();
        Ok(Some(pod))
    }

    /// Removes the object for good, once nothing of the pod is left on this node. A pod of another uid is left alone,
    /// with a Conflict.
    pub async fn delete_pod(&self, namespace: &str, name: &str, uid: &str) -> Result<(), ApiError> {
        let operation = format!("delete pod {namespace}/{name}");
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        let request = pods(namespace).delete(name, &params);
        // The answer is the whole pod or a Status, depending on whether it was gone at once. Nobody looks at it.
        self.call::<IgnoredAny>(&operation, Priority::Normal, request).await.map(drop)
    }

    /// None when there is no such pod.
    pub async fn get_pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, ApiError> {
        let operation = format!("get pod {namespace}/{name}");
        match self
            .call::<Pod>(&operation, Priority::Normal, pods(namespace).get(name, &GetParams::default()))
            .await
        {
            Ok(mut pod) => {
                pod.drop_bulk();
                Ok(Some(pod))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates the mirror of a static pod. The pod must already carry the mirror annotations and this node's name, and
    /// the Node as its owner: NodeRestriction refuses it otherwise.
    pub async fn create_mirror(&self, mirror: &Pod) -> Result<Pod, ApiError> {
        let namespace = mirror.metadata.namespace.as_deref().unwrap_or("default");
        let name = mirror.metadata.name.as_deref().unwrap_or_default();
        let operation = format!("create mirror pod {namespace}/{name}");
        let body = body(&operation, mirror)?;
        let request = pods(namespace).create(&PostParams::default(), body);
        let mut pod: Pod = self.call(&operation, Priority::Normal, request).await?;
        pod.drop_bulk();
        Ok(pod)
    }
}

/// A patch that names another uid is refused as an attempt to change it. What it means is that the pod was replaced.
fn another_uid(error: ApiError) -> ApiError {
    let replaced = error.kind == ErrorKind::Invalid && error.message.contains("metadata.uid");
    if replaced { ApiError { kind: ErrorKind::Conflict, ..error } } else { error }
}

fn pods(namespace: &str) -> Request {
    Request::new(format!("/api/v1/namespaces/{namespace}/pods"))
}

pub(crate) fn value<T: serde::Serialize>(operation: &str, object: &T) -> Result<Value, ApiError> {
    serde_json::to_value(object)
        .map_err(|error| ApiError::new(ErrorKind::Invalid, operation, error.to_string()))
}
