//! All nodes of the cluster, as far as an overlay has to know them, and what it writes on its own.

use std::collections::BTreeMap;

use futures::Stream;
use k8s_openapi::api::core::v1::NodeCondition;
use kube::core::Request;
use kube::core::params::{Patch, PatchParams};
use serde::Deserialize;
use serde_json::json;

use crate::client::Api;
use crate::error::ApiError;
use crate::rate_limit::Priority;
use crate::watch::{Followed, Scope, Update};

const PATH: &str = "/api/v1/nodes";

/// What an overlay needs of a Node. A whole one is a hundred times this size, and a cluster has thousands.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "ReadNode")]
pub struct NodeNetwork {
    pub name: String,
    pub annotations: BTreeMap<String, String>,
    /// spec.podCIDRs, or spec.podCIDR where only that is set.
    pub pod_ranges: Vec<String>,
    resource_version: Option<String>,
}

#[derive(Deserialize)]
struct ReadNode {
    #[serde(default)]
    metadata: ReadMetadata,
    #[serde(default)]
    spec: ReadSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ReadMetadata {
    name: String,
    annotations: Option<BTreeMap<String, String>>,
    resource_version: Option<String>,
}

#[derive(Default, Deserialize)]
struct ReadSpec {
    #[serde(rename = "podCIDR", default)]
    pod_range: String,
    #[serde(rename = "podCIDRs", default)]
    pod_ranges: Vec<String>,
}

impl From<ReadNode> for NodeNetwork {
    fn from(ReadNode { metadata, spec }: ReadNode) -> Self {
        let ReadSpec { pod_range, mut pod_ranges } = spec;
        if pod_ranges.is_empty() && !pod_range.is_empty() {
            pod_ranges.push(pod_range);
        }
        NodeNetwork {
            name: metadata.name,
            annotations: metadata.annotations.unwrap_or_default(),
            pod_ranges,
            resource_version: metadata.resource_version,
        }
    }
}

impl Followed for NodeNetwork {
    fn resource_version(&self) -> Option<&str> {
        self.resource_version.as_deref()
    }
}

impl Api {
    /// Follows all nodes until dropped.
    pub fn nodes(&self) -> impl Stream<Item = Update<NodeNetwork>> + Send + use<> {
        self.follow(Scope::new("nodes", PATH).first_from_cache())
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
        self.call::<serde::de::IgnoredAny>(&format!("{what} node {name}"), Priority::Urgent, request)
            .await
            .map(drop)
    }
}
