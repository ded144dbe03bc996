//! All nodes of the cluster, as far as an overlay has to know them, and what it writes on its own.

use std::collections::BTreeMap;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Request;
use kube::core::params::{Patch, PatchParams};
use serde::Deserialize;
use serde_json::json;

use crate::client::{Api, Pace};
use crate::error::ApiError;
use crate::follow::{Followed, Scope, Update, follow};

const PATH: &str = "/api/v1/nodes";

/// What is kept of a Node. A whole one is a hundred times this size, and a cluster has thousands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: String,
    pub annotations: BTreeMap<String, String>,
    /// spec.podCIDRs, or spec.podCIDR where only that is set.
    pub pod_ranges: Vec<String>,
}

#[derive(Debug, Clone)]
pub enum NodeEvent {
    /// All nodes. One that was known and is missing here is gone.
    Synced(Vec<NodeFacts>),
    Applied(NodeFacts),
    Deleted(String),
    /// The server cannot be heard, and why. What was told last still stands.
    Disconnected(String),
}

#[derive(Debug, Deserialize)]
struct Found {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: FoundSpec,
}

#[derive(Debug, Default, Deserialize)]
struct FoundSpec {
    #[serde(rename = "podCIDR", default)]
    pod_range: String,
    #[serde(rename = "podCIDRs", default)]
    pod_ranges: Vec<String>,
}

impl Followed for Found {
    fn meta(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl From<Found> for NodeFacts {
    fn from(found: Found) -> Self {
        let FoundSpec { pod_range, mut pod_ranges } = found.spec;
        if pod_ranges.is_empty() && !pod_range.is_empty() {
            pod_ranges.push(pod_range);
        }
        NodeFacts {
            name: found.metadata.name.unwrap_or_default(),
            annotations: found.metadata.annotations.unwrap_or_default(),
            pod_ranges,
        }
    }
}

impl Api {
    /// Follows all nodes until dropped.
    pub fn nodes(&self) -> impl Stream<Item = NodeEvent> + Send + use<> {
        let scope = Scope {
            what: "nodes".to_owned(),
            path: PATH.to_owned(),
            field_selector: None,
            from_cache: true,
            relist_after_outage: true,
        };
        follow::<Found>(self.clone(), scope).map(|update| match update {
            Update::Synced { items, .. } => {
                NodeEvent::Synced(items.into_iter().map(NodeFacts::from).collect())
            }
            Update::Applied(node) => NodeEvent::Applied(node.into()),
            Update::Deleted(node) => NodeEvent::Deleted(NodeFacts::from(node).name),
            Update::Disconnected(error) => NodeEvent::Disconnected(error.to_string()),
        })
    }

    /// Sets annotations of this node. By way of its status, as flannel does: that is all it is allowed to write.
    pub async fn annotate_node(&self, annotations: &BTreeMap<String, String>) -> Result<(), ApiError> {
        self.patch_node("annotate", json!({"metadata": {"annotations": annotations}})).await
    }

    /// Sets one condition of this node; all others stay.
    pub async fn set_node_condition(&self, condition: &NodeCondition) -> Result<(), ApiError> {
        let what = format!("set condition {} of", condition.type_);
        self.patch_node(&what, json!({"status": {"conditions": [condition]}})).await
    }

    async fn patch_node(&self, what: &str, patch: serde_json::Value) -> Result<(), ApiError> {
        let name = self.node_name();
        let request = Request::new(PATH).patch_subresource(
            "status",
            name,
            &PatchParams::default(),
            &Patch::Strategic(patch),
        );
        self.call::<serde::de::IgnoredAny>(&format!("{what} node {name}"), Pace::Urgent, request)
            .await
            .map(drop)
    }
}
