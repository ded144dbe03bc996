//! Whether the node grants a running pod what its spec asks for now.

use std::cmp::Reverse;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::containers;
use crate::admission::{NodeView, admit};
use crate::pod::{PendingReason, PendingResize};
use crate::qos::{QosClass, qos_of};
use crate::resources::{Amount, HostResources, amount, pod_requests};

/// What of the node's configuration rules a resize out.
#[derive(Debug, Clone, Copy)]
pub struct ResizeRules<'a> {
    pub static_cpu_manager: bool,
    pub static_memory_manager: bool,
    pub host: &'a HostResources,
}

/// Why a resize is not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// Never on this node as it is configured. `detail` is the label of the kubelet's metric.
    Infeasible { message: String, detail: &'static str },
    /// Not beside what is here now.
    Deferred { message: String },
}

impl Refused {
    pub fn pending(&self, generation: i64) -> PendingResize {
        let (reason, message) = match self {
            Self::Infeasible { message, .. } => (PendingReason::Infeasible, message),
            Self::Deferred { message } => (PendingReason::Deferred, message),
        };
        PendingResize { reason, message: message.clone(), generation }
    }
}

/// Decides as admission does, against what the other pods were granted.
pub fn grant(
    wanted: &Pod,
    allocated: &Pod,
    others: &[&Pod],
    node: &NodeView,
    rules: ResizeRules<'_>,
) -> Result<(), Refused> {
    let infeasible = |message: &str, detail| {
        let message = message.to_owned();
        Err(Refused::Infeasible { message, detail })
    };
    if swap_would_change(wanted, allocated, rules.host) {
        return infeasible("In-place resize of containers with swap is not supported.", "swap_limitation");
    }
    if qos_of(wanted) == QosClass::Guaranteed {
        let what = "Resize is infeasible for Guaranteed Pods alongside";
        if rules.static_cpu_manager && request_changes(wanted, allocated, "cpu") {
            let message = format!("{what} CPU Manager policy \"static\"");
            return infeasible(&message, "guaranteed_pod_cpu_manager_static_policy");
        }
        if rules.static_memory_manager && request_changes(wanted, allocated, "memory") {
            let message = format!("{what} Memory Manager policy \"Static\"");
            return infeasible(&message, "guaranteed_pod_memory_manager_static_policy");
        }
    }
    admit(wanted, others, node).map_err(|rejection| Refused::Deferred { message: rejection.message })
}

/// Which of several resizes that wait is looked at first: those that ask for no more than they have, then by priority, then
/// Guaranteed ones, then who has waited longest. One that nobody has looked at yet comes last.
pub type Rank = (bool, Reverse<i32>, bool, (bool, Option<Timestamp>));

pub fn rank(wanted: &Pod, allocated: &Pod, since: Option<Timestamp>) -> Rank {
    let requests = |pod: &Pod| pod.spec.as_ref().map(pod_requests).unwrap_or_default();
    let (new, old) = (requests(wanted), requests(allocated));
    let more = |name: &str| {
        let of = |list: &crate::resources::ResourceList| list.get(name).copied().unwrap_or_default();
        of(&new) > of(&old)
    };
    let priority = wanted.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
    let lesser = qos_of(wanted) != QosClass::Guaranteed;
    (more("cpu") || more("memory"), Reverse(priority), lesser, (since.is_none(), since))
}

/// What the API's status says of a resize that waits.
pub fn reported_pending(pod: &Pod) -> Option<PendingResize> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let shown = conditions.iter().find(|c| c.type_ == "PodResizePending" && c.status == "True")?;
    let reason = match shown.reason.as_deref() {
        Some("Infeasible") => PendingReason::Infeasible,
        _ => PendingReason::Deferred,
    };
    let message = shown.message.clone().unwrap_or_default();
    Some(PendingResize { reason, message, generation: shown.observed_generation.unwrap_or(0) })
}

/// Which figures of containers a spec has changed: resource, requirement, and what became of it.
pub fn requested(before: &Pod, after: &Pod) -> Vec<[&'static str; 3]> {
    let mut found = vec![];
    for (new, old) in pairs(after, before) {
        for resource in ["memory", "cpu"] {
            for requirement in ["requests", "limits"] {
                let of = |c: &Container| {
                    let own = c.resources.as_ref();
                    let list = own.and_then(|r| {
                        if requirement == "requests" { &r.requests } else { &r.limits }.as_ref()
                    });
                    amount(list, resource)
                };
                let operation = match (of(old), of(new)) {
                    (old, new) if old == new => continue,
                    (old, _) if old.is_zero() => "add",
                    (_, new) if new.is_zero() => "remove",
                    (old, new) if new > old => "increase",
                    _ => "decrease",
                };
                found.push([resource, requirement, operation]);
            }
        }
    }
    found
}

fn pairs<'a>(wanted: &'a Pod, allocated: &'a Pod) -> impl Iterator<Item = (&'a Container, &'a Container)> {
    let all = wanted.spec.iter().flat_map(containers);
    all.filter_map(|c| Some((c, allocated.spec.iter().flat_map(containers).find(|a| a.name == c.name)?)))
}

fn request(c: &Container, name: &str) -> Amount {
    amount(c.resources.as_ref().and_then(|r| r.requests.as_ref()), name)
}

fn request_changes(wanted: &Pod, allocated: &Pod, name: &str) -> bool {
    pairs(wanted, allocated).any(|(new, old)| request(new, name) != request(old, name))
}

/// How much a container may swap follows its request, and the kernel is not told of that while it runs.
fn swap_would_change(wanted: &Pod, allocated: &Pod, host: &HostResources) -> bool {
    let restarts = |c: &Container| {
        let policy = c.resize_policy.iter().flatten().find(|p| p.resource_name == "memory");
        policy.is_some_and(|p| p.restart_policy == "RestartContainer")
    };
    pairs(wanted, allocated).any(|(new, old)| {
        request(new, "memory") != request(old, "memory")
            && !restarts(old)
            && (host.may_swap(wanted, new) || host.may_swap(allocated, old))
    })
}
