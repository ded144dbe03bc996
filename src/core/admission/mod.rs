//! Whether this node can take a pod at all. A pod that it cannot take fails at once, with the reason in its status.

mod affinity;
mod app_armor;
mod declared;
mod fit;
mod sysctls;
#[cfg(test)]
mod tests;

pub(crate) use affinity::selector_matches as node_selector_matches;
pub use declared::DECLARED_FEATURES;
pub use sysctls::normalized as sysctl_name;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::node::NodeObject;
use crate::resources::check_quantities;
use crate::status::has_finished;

const AFFINITY: &str = "NodeAffinity";
const TAINT: &str = "TaintToleration";

/// What of the node decides.
#[derive(Debug, Clone, Default)]
pub struct NodeView {
    pub name: String,
    /// Those that the node gives itself, until its object is known.
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// cpu, memory, pods, ephemeral-storage, hugepages-* and extended resources.
    pub allocatable: BTreeMap<String, Quantity>,
    /// "linux".
    pub os: String,
    /// Sysctls beyond the safe ones, by name or by prefix ending in *.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// The runtime can hold a container to exactly the groups it was given.
    pub supplemental_groups_policy: bool,
    /// The kernel enforces AppArmor.
    pub app_armor: bool,
}

impl NodeView {
    /// With what the Node object says: labels and taints, and resources that others advertise on it.
    #[must_use]
    pub fn with_object(mut self, object: &NodeObject) -> Self {
        let Some(node) = object.get() else { return self };
        self.labels = object.labels().cloned().unwrap_or_default();
        self.taints = object.taints().to_vec();
        let advertised = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        for (name, amount) in advertised.into_iter().flatten().filter(|(name, _)| fit::is_extended(name)) {
            self.allocatable.entry(name.clone()).or_insert_with(|| amount.clone());
        }
        self
    }
}

/// Why a pod was refused: its status.reason and the words for status.message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

impl Rejection {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    fn predicate(name: &str, why: &str) -> Self {
        Self::new(name, format!("Predicate {name} failed: {why}"))
    }

    /// Whether it rests on labels or taints, which somebody may have changed a moment ago. The Node has to be asked for again
    /// before it counts.
    pub fn rests_on_object(&self) -> bool {
        matches!(self.reason.as_str(), AFFINITY | TAINT)
    }
}

/// Decides about one pod beside those that run already. Of several reasons the first is reported, in the kubelet's order:
/// what no eviction could change, then resources, then affinity, ports and taints, then AppArmor and features of the node.
///
/// A pod from a manifest stays whatever the taints say: nobody else could run it.
pub fn admit(pod: &Pod, others: &[&Pod], node: &NodeView) -> Result<(), Rejection> {
    if let Err(bad) = check_quantities(pod) {
        return Err(Rejection::new(
            "UnexpectedAdmissionError",
            format!("Pod has an unreadable resource: {bad}"),
        ));
    }
    let Some(spec) = &pod.spec else {
        return Err(Rejection::new("UnexpectedAdmissionError", "Pod has no spec"));
    };
    sysctls::check(spec, &node.allowed_unsafe_sysctls)?;
    check_os(pod, node)?;
    let policy = spec.security_context.as_ref().and_then(|s| s.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && !node.supplemental_groups_policy {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
        return Err(Rejection::new("SupplementalGroupsPolicyNotSupported", message));
    }

    let others: Vec<&Pod> = others.iter().copied().filter(|other| !has_finished(other)).collect();
    fit::resources(spec, &others, node)?;
    if !affinity::matches(spec, node) {
        return Err(Rejection::predicate(AFFINITY, "node(s) didn't match Pod's node affinity/selector"));
    }
    if spec.node_name.as_ref().is_some_and(|name| !name.is_empty() && *name != node.name) {
        return Err(Rejection::predicate("NodeName", "node(s) didn't match the requested node name"));
    }
    if !fit::ports_free(spec, &others) {
        return Err(Rejection::predicate(
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let mut evicting = node.taints.iter().filter(|t| t.effect == "NoExecute");
    if !is_static(pod) && evicting.any(|taint| !tolerations.iter().any(|t| tolerates(t, taint))) {
        return Err(Rejection::predicate(TAINT, "node(s) had taints that the pod didn't tolerate"));
    }
    // One that has run before was judged then; after a reboot it is not refused for what has changed.
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    if matches!(phase, None | Some("" | "Pending")) {
        app_armor::check(pod, spec, node.app_armor)?;
    }
    declared::check(spec)
}

/// Whether a toleration covers a taint. An empty key with Exists covers all.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let of = |field: &Option<String>| field.clone().unwrap_or_default();
    let (effect, key) = (of(&toleration.effect), of(&toleration.key));
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match of(&toleration.operator).as_str() {
        "" | "Equal" => of(&toleration.value) == of(&taint.value),
        "Exists" => true,
        _ => false,
    }
}

fn check_os(pod: &Pod, node: &NodeView) -> Result<(), Rejection> {
    const LABEL: &str = "kubernetes.io/os";
    let label = pod.metadata.labels.as_ref().and_then(|l| l.get(LABEL));
    if label.is_some_and(|os| *os != node.os) {
        let message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Err(Rejection::new("PodOSSelectorNodeLabelDoesNotMatch", message));
    }
    let wanted = pod.spec.as_ref().and_then(|s| s.os.as_ref());
    if wanted.is_some_and(|os| os.name != node.os) {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Err(Rejection::new("PodOSNotSupported", message));
    }
    Ok(())
}

/// The annotation that every source of pods sets, with its own name.
fn is_static(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/config.source"));
    source.is_some_and(|source| source != "api")
}
