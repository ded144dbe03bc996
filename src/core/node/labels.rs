//! Labels and annotations that a node may give itself, and keeping those of an existing Node right.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};

use super::{NodeFacts, Registration, fixed_addresses};

const OS: &str = "kubernetes.io/os";
const ARCH: &str = "kubernetes.io/arch";

/// Tells a cloud controller which addresses the node was given, so that it checks instead of guesses.
pub(super) const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Tells the attach-detach controller that volumes are its business, not the node's.
pub(super) const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Labels in the kubernetes.io and k8s.io domains that a node may set on itself; NodeRestriction refuses the rest.
const ALLOWED: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const ALLOWED_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "--node-labels: {key:?} may not be set by a node: in the kubernetes.io and k8s.io domains only {} and \
     labels under kubelet.kubernetes.io or node.kubernetes.io are allowed",
    ALLOWED.join(", ")
)]
pub struct BadLabel {
    pub key: String,
}

/// Refuses what the apiserver would refuse anyway, but at start, by name, and before the node half registers.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), BadLabel> {
    match labels.keys().find(|key| !is_allowed(key)) {
        Some(key) => Err(BadLabel { key: key.clone() }),
        None => Ok(()),
    }
}

fn is_allowed(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return true };
    let within = |parent: &str| domain == parent || domain.ends_with(&format!(".{parent}"));
    let reserved = within("kubernetes.io") || within("k8s.io");
    !reserved || ALLOWED.contains(&key) || ALLOWED_DOMAINS.into_iter().any(within)
}

/// The labels that this node gives itself: those that every node carries, and those of --node-labels, which win.
pub fn own_labels(facts: &NodeFacts) -> BTreeMap<String, String> {
    let machine = &facts.machine;
    let every_node = [
        ("kubernetes.io/hostname", &facts.hostname),
        (OS, &machine.operating_system),
        (ARCH, &machine.architecture),
        ("beta.kubernetes.io/os", &machine.operating_system),
        ("beta.kubernetes.io/arch", &machine.architecture),
    ];
    let mut labels: BTreeMap<_, _> =
        every_node.into_iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
    labels.extend(facts.registration.labels.clone());
    labels
}

pub(super) fn own_annotations(registration: &Registration) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([(CONTROLLER_ATTACHES.to_owned(), "true".to_owned())]);
    let given = fixed_addresses(&registration.node_ips);
    if registration.external_cloud && !given.is_empty() {
        let given: Vec<String> = given.iter().map(ToString::to_string).collect();
        annotations.insert(PROVIDED_NODE_IP.to_owned(), given.join(","));
    }
    annotations
}

/// The merge patch that makes an existing Node's labels and annotations what this agent wants, or None when they are.
/// What others put there stays. Taints and unschedulable are left alone: they were set once, at creation.
pub fn reconcile_metadata(existing: &Node, desired: &Node) -> Option<Value> {
    changes(existing, desired, |_| true).map(|metadata| json!({ "metadata": metadata }))
}

/// As [`reconcile_metadata`], the metadata alone, for what a Node must have for as long as it is there, whoever takes it away.
pub fn required_metadata(known: &Node, desired: &Node) -> Option<Value> {
    changes(known, desired, |key| [OS, ARCH, PROVIDED_NODE_IP].contains(&key))
}

fn changes(have: &Node, want: &Node, concerns: impl Fn(&str) -> bool) -> Option<Value> {
    let differing = |have: &Option<BTreeMap<String, String>>, want: &Option<BTreeMap<String, String>>| {
        let present = |key: &String| have.as_ref().and_then(|entries| entries.get(key));
        let wanted = want.iter().flatten().filter(|(key, _)| concerns(key));
        let differing = wanted.filter(|(key, value)| present(key) != Some(value));
        differing.map(|(key, value)| (key.clone(), Value::String(value.clone()))).collect::<Map<_, _>>()
    };
    let labels = differing(&have.metadata.labels, &want.metadata.labels);
    let mut annotations = differing(&have.metadata.annotations, &want.metadata.annotations);
    let has_addresses = |node: &Node| {
        node.metadata.annotations.as_ref().is_some_and(|entries| entries.contains_key(PROVIDED_NODE_IP))
    };
    // A cloud controller would go on believing addresses that this node no longer was given.
    if has_addresses(have) && !has_addresses(want) {
        annotations.insert(PROVIDED_NODE_IP.to_owned(), Value::Null);
    }
    let mut metadata = Map::new();
    for (name, entries) in [("labels", labels), ("annotations", annotations)] {
        if !entries.is_empty() {
            metadata.insert(name.to_owned(), Value::Object(entries));
        }
    }
    (!metadata.is_empty()).then_some(Value::Object(metadata))
}
