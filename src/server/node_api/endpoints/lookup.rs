//! From the names in a path to what they mean on this node.

use std::sync::Arc;

use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use keelson_agent::NodeHandle;
use keelson_core::ids::{ContainerId, PodUid};
use keelson_core::node_api::{OfContainer, OfPod};
use keelson_cri::{CriError, ErrorKind};

use crate::reply::{Reply, text};

/// An answer instead of what was asked for.
pub(super) type Refused = Box<Response<Reply>>;

pub(super) fn pod(node: &NodeHandle, of: &OfPod) -> Result<(PodUid, Arc<Pod>), Refused> {
    let found = node.pod(&of.namespace, &of.name);
    found.filter(|(uid, _)| of.uid.as_deref().is_none_or(|asked| asked == uid.as_str())).ok_or_else(|| {
        let named = format!("{}/{}", of.namespace, of.name);
        Box::new(text(StatusCode::NOT_FOUND, format!("pod does not exist: {named:?} is not on this node\n")))
    })
}

/// A container that runs now, of a pod that is to run here.
pub(super) async fn running(node: &NodeHandle, of: &OfContainer) -> Result<(ContainerId, Arc<Pod>), Refused> {
    let (uid, pod) = pod(node, &of.pod)?;
    match node.running(&uid, &of.container).await {
        Ok(Some(id)) => Ok((id, pod)),
        Ok(None) => {
            Err(Box::new(text(StatusCode::NOT_FOUND, format!("container not found ({:?})\n", of.container))))
        }
        Err(error) => Err(Box::new(runtime_failed(&error))),
    }
}

pub(super) fn runtime_failed(error: &CriError) -> Response<Reply> {
    let status = match error.kind {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    text(status, format!("{error}\n"))
}
