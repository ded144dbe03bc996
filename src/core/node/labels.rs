//! Labels and annotations that a node may give itself, and keeping those of an existing Node right.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};

use super::NodeFacts;

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

/// The labels that every node carries.
pub(super) fn own(facts: &NodeFacts) -> [(&'static str, String); 5] {
    let machine = &facts.machine;
    [
        ("kubernetes.io/hostname", facts.hostname.clone()),
        ("kubernetes.io/os", machine.operating_system.clone()),
        ("kubernetes.io/arch", machine.architecture.clone()),
        ("beta.kubernetes.io/os", machine.operating_system.clone()),
        ("beta.kubernetes.io/arch", machine.architecture.clone()),
    ]
}

/// The merge patch that makes an existing Node's labels and annotations what this agent wants, or None when they are.
/// What others put there stays. Taints and unschedulable are left alone: they were set once, at creation.
pub fn reconcile_metadata(existing: &Node, desired: &Node) -> Option<Value> {
    let missing = |have: &Option<BTreeMap<String, String>>, want: &Option<BTreeMap<String, String>>| {
        let have = have.clone().unwrap_or_default();
        let differing = want.iter().flatten().filter(|(key, value)| have.get(*key) != Some(value));
        differing.map(|(key, value)| (key.clone(), Value::String(value.clone()))).collect::<Map<_, _>>()
    };
    let labels = missing(&existing.metadata.labels, &desired.metadata.labels);
    let annotations = missing(&existing.metadata.annotations, &desired.metadata.annotations);
    let mut metadata = Map::new();
    for (name, entries) in [("labels", labels), ("annotations", annotations)] {
        if !entries.is_empty() {
            metadata.insert(name.to_owned(), Value::Object(entries));
        }
    }
    (!metadata.is_empty()).then(|| json!({ "metadata": metadata }))
}
