//! This node's object at the server: created or taken over, followed, and patched with what changed.

use futures::Stream;
use k8s_openapi::api::core::v1::Node;
use keelson_core::node::{reconcile_metadata, required_metadata};
use kube::core::Request;
use kube::core::params::{GetParams, Patch, PatchParams, PostParams};
use serde_json::{Map, Value};

use crate::call::body;
use crate::client::Api;
use crate::error::{ApiError, ErrorKind};
use crate::merge_patch;
use crate::rate_limit::Priority;
use crate::status::value;
use crate::watch::{Followed as _, Scope, Update};

const PATH: &str = "/api/v1/nodes";

impl Api {
    /// Follows this node's own object until dropped.
    pub fn own_node(&self) -> impl Stream<Item = Update<Node>> + Send + use<> {
        let name = self.node_name();
        self.follow(Scope::new(format!("node {name}"), PATH).with_fields(format!("metadata.name={name}")))
    }

    /// Creates the Node, or takes over the one that is there. Returns what is at the server then.
    pub async fn register_or_adopt(&self, desired: &Node) -> Result<Node, ApiError> {
        let name = self.node_name();
        let operation = format!("create node {name}");
        let body = body(&operation, desired)?;
        let request = Request::new(PATH).create(&PostParams::default(), body);
        match self.call::<Node>(&operation, Priority::Urgent, request).await {
            Ok(node) => return Ok(slim(node)),
            Err(error) if error.is_already_exists() => {}
            // Some clusters let nodes be created by others only. If it is there, that will do.
            Err(error) if error.kind == ErrorKind::Forbidden => match self.get_node().await {
                Ok(Some(existing)) => return self.adopt_node(existing, desired).await,
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        }
        match self.get_node().await? {
            Some(existing) => self.adopt_node(existing, desired).await,
            None => {
                let message = "it was deleted while this node registered; trying again will help";
                Err(ApiError::new(ErrorKind::Conflict, &operation, message))
            }
        }
    }

    /// Takes over a Node that is there: its labels and annotations are brought in line, its taints are not touched.
    pub async fn adopt_node(&self, existing: Node, desired: &Node) -> Result<Node, ApiError> {
        let Some(patch) = reconcile_metadata(&existing, desired) else { return Ok(existing) };
        let name = self.node_name();
        let request = Request::new(PATH).patch(name, &PatchParams::default(), &Patch::Merge(patch));
        self.call::<Node>(&format!("patch labels of node {name}"), Priority::Urgent, request).await.map(slim)
    }

    /// None when there is no such Node.
    pub async fn get_node(&self) -> Result<Option<Node>, ApiError> {
        let name = self.node_name();
        let request = Request::new(PATH).get(name, &GetParams::default());
        match self.call::<Node>(&format!("get node {name}"), Priority::Urgent, request).await {
            Ok(node) => Ok(Some(slim(node))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Brings the status of the Node, and the labels and annotations that it must have, from `known` to `desired`. Nothing is
    /// sent when they do not differ. A Node that is gone is NotFound: register again.
    pub async fn patch_node_status(&self, known: &Node, desired: &Node) -> Result<Option<Node>, ApiError> {
        let name = self.node_name();
        let operation = format!("patch status of node {name}");
        let mut patch = Map::new();
        if let Some(metadata) = required_metadata(known, desired) {
            patch.insert("metadata".to_owned(), metadata);
        }
        let (old, new) = (value(&operation, &known.status)?, value(&operation, &desired.status)?);
        if let Some(status) = merge_patch::diff(&old, &new) {
            patch.insert("status".to_owned(), status);
        }
        if patch.is_empty() {
            return Ok(None);
        }
        let patch = Patch::Strategic(Value::Object(patch));
        let request = Request::new(PATH).patch_subresource("status", name, &PatchParams::default(), &patch);
        self.call::<Node>(&operation, Priority::Urgent, request).await.map(slim).map(Some)
    }
}

fn slim(mut node: Node) -> Node {
    node.drop_bulk();
    node
}
