//! The Node object at the server: created or taken over, then told what changed.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use keelson_core::node::{reconcile_metadata, status_changed};
use kube::core::Request;
use kube::core::params::{GetParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::client::{Api, Pace};
use crate::error::{ApiError, ErrorKind};
use crate::follow::forget_bulk;
use crate::merge_patch;
use crate::status::value;

const PATH: &str = "/api/v1/nodes";

/// This node as the server knows it.
#[derive(Debug, Clone)]
pub struct RegisteredNode {
    /// As last answered by the server.
    pub node: Node,
    /// When its status was last sent, changed or not.
    pub reported_at: Option<Timestamp>,
}

impl RegisteredNode {
    pub fn uid(&self) -> &str {
        self.node.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn status(&self) -> NodeStatus {
        self.node.status.clone().unwrap_or_default()
    }
}

impl Api {
    /// Creates the Node, or takes over the one that is there: its labels and annotations are brought in line, its
    /// taints are not touched. Returns what is at the server then.
    pub async fn register_or_adopt(&self, desired: &Node) -> Result<RegisteredNode, ApiError> {
        let name = self.node_name();
        let operation = format!("create node {name}");
        let body = serde_json::to_vec(desired)
            .map_err(|error| ApiError::new(ErrorKind::Invalid, &operation, error.to_string()))?;
        let request = Request::new(PATH).create(&PostParams::default(), body);
        match self.call::<Node>(&operation, Pace::Urgent, request).await {
            Ok(node) => return Ok(registered(node)),
            Err(error) if error.is_already_exists() => {}
            // Some clusters let nodes be created by others only. If it is there, that will do.
            Err(error) if error.kind == ErrorKind::Forbidden => match self.get_node().await {
                Ok(Some(existing)) => return self.adopt(existing, desired).await,
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        }
        match self.get_node().await? {
            Some(existing) => self.adopt(existing, desired).await,
            None => {
                let message = "it was deleted while this node registered; trying again will help";
                Err(ApiError::new(ErrorKind::Conflict, &operation, message))
            }
        }
    }

    async fn adopt(&self, existing: Node, desired: &Node) -> Result<RegisteredNode, ApiError> {
        let Some(patch) = reconcile_metadata(&existing, desired) else { return Ok(registered(existing)) };
        let name = self.node_name();
        let request = Request::new(PATH).patch(name, &PatchParams::default(), &Patch::Merge(patch));
        self.call::<Node>(&format!("patch labels of node {name}"), Pace::Urgent, request)
            .await
            .map(registered)
    }

    /// None when there is no such Node.
    pub async fn get_node(&self) -> Result<Option<Node>, ApiError> {
        let name = self.node_name();
        let request = Request::new(PATH).get(name, &GetParams::default());
        match self.call::<Node>(&format!("get node {name}"), Pace::Urgent, request).await {
            Ok(mut node) => {
                forget_bulk(&mut node.metadata);
                Ok(Some(node))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Brings the Node's status to `desired`. Nothing is sent when only heartbeats differ and the last report is
    /// younger than `report_every`. A Node that is gone is NotFound: register again.
    pub async fn patch_node_status(
        &self,
        registered: &mut RegisteredNode,
        desired: &NodeStatus,
        report_every: SignedDuration,
        now: Timestamp,
    ) -> Result<bool, ApiError> {
        let old = registered.status();
        let due = registered.reported_at.is_none_or(|at| now.duration_since(at) >= report_every);
        if !due && !status_changed(&old, desired) {
            return Ok(false);
        }
        let name = self.node_name();
        let operation = format!("patch status of node {name}");
        if let Some(status) = merge_patch::diff(&value(&operation, &old)?, &value(&operation, desired)?) {
            let patch = Patch::Strategic(json!({ "status": status }));
            let request =
                Request::new(PATH).patch_subresource("status", name, &PatchParams::default(), &patch);
            let mut node = self.call::<Node>(&operation, Pace::Urgent, request).await?;
            forget_bulk(&mut node.metadata);
            registered.node = node;
        }
        registered.reported_at = Some(now);
        Ok(true)
    }
}

fn registered(mut node: Node) -> RegisteredNode {
    forget_bulk(&mut node.metadata);
    RegisteredNode { node, reported_at: None }
}
