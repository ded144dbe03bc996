//! The Node object: what this machine is, what it can carry, and how it feels.
//!
//! [`NodeFacts`] is everything that has to be found out; the rest follows from it.

mod capacity;
mod conditions;
mod labels;

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeDaemonEndpoints, NodeRuntimeHandler, NodeSpec,
    NodeStatus, NodeSwapStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use capacity::{Amounts, Capacity, Reserved, allocatable, binary_quantity, cpu_quantity};
pub use conditions::{NodeTransition, Pressure, RuntimeCondition, RuntimeState, transitions};
pub use labels::{BadLabel, check_labels, reconcile_metadata};

/// What has to be found out about this machine and its runtime before its Node can be written down.
#[derive(Debug, Clone, Default)]
pub struct NodeFacts {
    pub name: String,
    pub hostname: String,
    /// Primary first; a second one of the other family makes the node dual-stack.
    pub addresses: Vec<IpAddr>,
    pub machine: Machine,
    /// As the runtime names itself, with its scheme: containerd://1.7.24.
    pub runtime_version: String,
    /// What is shown as the kubelet's version; the scheduler and the version skew policy read it.
    pub agent_version: String,
    /// Where the node API listens; 0 when nobody does, as the apiserver would store a missing one.
    pub agent_port: i32,
    pub capacity: Capacity,
    pub reserved: Reserved,
    pub runtime: RuntimeState,
    pub pressure: Pressure,
    /// Anything else that keeps the node from being ready, in words: storage, a shutdown in progress.
    pub other_problems: Vec<String>,
    /// Largest first, cut to what the API should carry (50 by default).
    pub images: Vec<NodeImage>,
    pub runtime_handlers: Vec<NodeRuntimeHandler>,
    /// From --node-labels; checked by [`check_labels`].
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Only put on when the node is created: afterwards taints belong to whoever administers the cluster.
    pub register_taints: Vec<Taint>,
    pub register_unschedulable: bool,
    pub provider_id: Option<String>,
    /// Unique names of attachable volumes in use.
    pub volumes_in_use: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
    /// As Go names it: linux.
    pub operating_system: String,
    /// As Go names it: amd64, arm64.
    pub architecture: String,
    pub swap_bytes: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeImage {
    /// Digests and tags.
    pub names: Vec<String>,
    pub size_bytes: u64,
}

/// The Node as it is created. Its status is filled in, so that a fresh node is whole from its first instant.
pub fn desired_node(facts: &NodeFacts, now: Timestamp) -> Node {
    let mut labels = facts.labels.clone();
    for (key, value) in labels::own(facts) {
        labels.insert(key.to_owned(), value);
    }
    let mut annotations = facts.annotations.clone();
    annotations.insert(labels::CONTROLLER_ATTACHES.to_owned(), "true".to_owned());
    Node {
        metadata: ObjectMeta {
            name: Some(facts.name.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: (!facts.register_taints.is_empty()).then(|| facts.register_taints.clone()),
            unschedulable: facts.register_unschedulable.then_some(true),
            provider_id: facts.provider_id.clone(),
            ..NodeSpec::default()
        }),
        status: Some(desired_status(facts, None, now)),
    }
}

/// The status as it is now. What others wrote into `previous` (conditions of their own, attached volumes, extended
/// resources) stays, and a condition that did not change keeps the time of its last change.
pub fn desired_status(facts: &NodeFacts, previous: Option<&NodeStatus>, now: Timestamp) -> NodeStatus {
    let mut status = previous.cloned().unwrap_or_default();
    let (capacity, allocatable) = capacity::lists(&facts.capacity, &facts.reserved);
    capacity::merge(status.capacity.get_or_insert_default(), capacity);
    capacity::merge(status.allocatable.get_or_insert_default(), allocatable);
    status.addresses = Some(addresses(facts));
    status.conditions =
        Some(conditions::conditions(facts, status.conditions.take().unwrap_or_default(), now));
    status.daemon_endpoints =
        Some(NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: facts.agent_port }) });
    status.node_info = Some(system_info(facts));
    // Empty lists are left out: the server does not keep them, and they would look like a change for ever.
    status.images = (!facts.images.is_empty()).then(|| facts.images.iter().map(image).collect());
    status.runtime_handlers = (!facts.runtime_handlers.is_empty()).then(|| facts.runtime_handlers.clone());
    status.volumes_in_use = (!facts.volumes_in_use.is_empty()).then(|| facts.volumes_in_use.clone());
    status
}

/// True when two statuses differ in more than the time of their heartbeats.
pub fn status_changed(old: &NodeStatus, new: &NodeStatus) -> bool {
    let still = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status
    };
    still(old) != still(new)
}

fn addresses(facts: &NodeFacts) -> Vec<NodeAddress> {
    let internal = facts.addresses.iter().map(|ip| ("InternalIP", ip.to_string()));
    internal
        .chain([("Hostname", facts.hostname.clone())])
        .map(|(type_, address)| NodeAddress { type_: type_.to_owned(), address })
        .collect()
}

fn system_info(facts: &NodeFacts) -> NodeSystemInfo {
    let machine = facts.machine.clone();
    NodeSystemInfo {
        machine_id: machine.machine_id,
        system_uuid: machine.system_uuid,
        boot_id: machine.boot_id,
        kernel_version: machine.kernel_version,
        os_image: machine.os_image,
        container_runtime_version: facts.runtime_version.clone(),
        kubelet_version: facts.agent_version.clone(),
        // Required by the API and of no meaning since 1.33.
        kube_proxy_version: String::new(),
        operating_system: machine.operating_system,
        architecture: machine.architecture,
        swap: machine
            .swap_bytes
            .filter(|bytes| *bytes > 0)
            .map(|bytes| NodeSwapStatus { capacity: i64::try_from(bytes).ok() }),
    }
}

fn image(image: &NodeImage) -> ContainerImage {
    ContainerImage {
        // More names than these say nothing new about an image, and the Node is sent around a lot.
        names: Some(image.names.iter().take(5).cloned().collect()),
        size_bytes: i64::try_from(image.size_bytes).ok(),
    }
}

#[cfg(test)]
mod tests;
