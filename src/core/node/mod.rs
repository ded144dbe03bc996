//! The Node object: what this machine is, what it can carry, and how well it is.
//!
//! [`NodeFacts`] is everything that has to be found out; the rest follows from it.

mod addresses;
mod capacity;
mod complaint;
mod conditions;
mod from_settings;
mod labels;
mod object;
mod runtime;
mod signals;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeSpec, NodeStatus, NodeSwapStatus,
    NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::admission::DECLARED_FEATURES;
use addresses::shown_addresses;
pub use addresses::{HostAddresses, fixed_addresses, host_ips, next_addresses, node_addresses};
pub use capacity::{Amounts, Capacity, Reserved, allocatable, binary_quantity, cpu_quantity};
pub use complaint::Complaint;
pub use conditions::{NodeTransition, Pressure, transitions};
pub use from_settings::{Registration, agent_port};
pub use labels::{BadLabel, check_labels, own_labels, reconcile_metadata, required_metadata};
pub use object::NodeObject;
pub use runtime::{NodeImage, NodeRuntime, RuntimeCondition, RuntimeState, largest_images, runtime_version};
pub use signals::{NodeSignals, SignalSource};

/// What has to be found out about this machine and its runtime before its Node can be written down.
#[derive(Debug, Clone, Default)]
pub struct NodeFacts {
    pub name: String,
    pub hostname: String,
    pub machine: Machine,
    /// What is shown as the kubelet's version; the scheduler and the version skew policy read it.
    pub agent_version: String,
    /// Where the node API listens; 0 when nobody does, as the apiserver would store a missing one.
    pub agent_port: i32,
    pub capacity: Capacity,
    pub reserved: Reserved,
    pub runtime: NodeRuntime,
    pub signals: NodeSignals,
    pub registration: Registration,
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
    /// The kernel enforces AppArmor profiles.
    pub app_armor: bool,
}

/// The Node as it should be: as it is created, or from `known`, the one that is there. Its status is filled in, so that a
/// fresh node is whole from its first instant.
pub fn desired_node(facts: &NodeFacts, known: Option<&Node>, now: Timestamp) -> Node {
    let registration = &facts.registration;
    Node {
        metadata: ObjectMeta {
            name: Some(facts.name.clone()),
            labels: Some(own_labels(facts)),
            annotations: Some(labels::own_annotations(registration)),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: (!registration.taints.is_empty()).then(|| registration.taints.clone()),
            provider_id: registration.provider_id.clone(),
            ..NodeSpec::default()
        }),
        status: Some(desired_status(facts, known.and_then(|node| node.status.as_ref()), now)),
    }
}

/// The status as it is now. What others wrote into `previous` (conditions of their own, attached volumes, extended
/// resources) stays, and a condition that did not change keeps the time of its last change.
pub fn desired_status(facts: &NodeFacts, previous: Option<&NodeStatus>, now: Timestamp) -> NodeStatus {
    let mut status = previous.cloned().unwrap_or_default();
    let (capacity, allocatable) = capacity::lists(&facts.capacity, &facts.reserved, &facts.signals.extended);
    capacity::merge(status.capacity.get_or_insert_default(), capacity);
    capacity::merge(status.allocatable.get_or_insert_default(), allocatable);
    status.addresses = Some(shown_addresses(facts, status.addresses.take().unwrap_or_default()));
    status.conditions =
        Some(conditions::conditions(facts, status.conditions.take().unwrap_or_default(), now));
    status.daemon_endpoints =
        Some(NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: facts.agent_port }) });
    status.node_info = Some(system_info(facts));
    // Empty lists are left out: the server does not keep them, and they would look like a change for ever.
    let runtime = &facts.runtime;
    status.images = (!runtime.images.is_empty()).then(|| runtime.images.iter().map(image).collect());
    status.runtime_handlers = (!runtime.handlers.is_empty()).then(|| runtime.handlers.clone());
    status.features = runtime.features.clone().or(status.features);
    status.declared_features = Some(DECLARED_FEATURES.map(str::to_owned).to_vec());
    let volumes = &facts.signals.volumes_in_use;
    status.volumes_in_use = (!volumes.is_empty()).then(|| volumes.iter().cloned().collect());
    status
}

/// Whether the Node is to be written: something differs in more than the time of its heartbeats, or the last report is too old.
pub fn report_is_due(
    known: &Node,
    desired: &Node,
    age: Option<SignedDuration>,
    every: SignedDuration,
) -> bool {
    let status = |node: &Node| node.status.clone().unwrap_or_default();
    age.is_none_or(|age| age >= every)
        || status_changed(&status(known), &status(desired))
        || required_metadata(known, desired).is_some()
}

/// Whether the machine was booted since the Node was last written.
pub fn has_rebooted(known: &Node, desired: &Node) -> bool {
    let boot = |node: &Node| {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        info.map(|info| info.boot_id.clone()).filter(|id| !id.is_empty())
    };
    matches!((boot(known), boot(desired)), (Some(before), Some(now)) if before != now)
}

/// True when two statuses differ in more than the time of their heartbeats.
fn status_changed(old: &NodeStatus, new: &NodeStatus) -> bool {
    let still = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status
    };
    still(old) != still(new)
}

fn system_info(facts: &NodeFacts) -> NodeSystemInfo {
    let machine = facts.machine.clone();
    NodeSystemInfo {
        machine_id: machine.machine_id,
        system_uuid: machine.system_uuid,
        boot_id: machine.boot_id,
        kernel_version: machine.kernel_version,
        os_image: machine.os_image,
        container_runtime_version: facts.runtime.version.clone(),
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
