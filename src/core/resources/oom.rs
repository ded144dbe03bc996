//! Whom the kernel kills first when the machine runs out of memory.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::aggregate::{amount, container_requests, has_pod_level, is_sidecar};
use crate::qos::{QosClass, qos_of};

const PROTECTED: i64 = -997;
const EXPENDABLE: i64 = 1000;
/// Pods of this priority and above are node critical.
const NODE_CRITICAL: i32 = 2_000_001_000;

/// oom_score_adj of a container's processes. A burstable container that stays within its request scores below one
/// that does not; a sidecar is never killed before the main containers it serves.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    let Some(spec) = &pod.spec else { return EXPENDABLE };
    if spec.priority.is_some_and(|p| p >= NODE_CRITICAL) {
        return PROTECTED;
    }
    match qos_of(pod) {
        QosClass::Guaranteed => return PROTECTED,
        QosClass::BestEffort => return EXPENDABLE,
        QosClass::Burstable => {}
    }
    let capacity = memory_capacity.max(1);
    let share = unclaimed_share(spec);
    let score = |request: i64| {
        1000 - (1000 * i128::from(request.saturating_add(share)) / i128::from(capacity)) as i64
    };

    let mut adjust = score(memory_request(container));
    let is_init = spec.init_containers.iter().flatten().any(|c| c.name == container.name);
    if is_init && is_sidecar(container) {
        let least = spec.containers.iter().map(memory_request).min().unwrap_or(0);
        adjust = adjust.min(score(least));
    }
    // Always between a guaranteed container that uses everything and a best-effort one.
    adjust.clamp(1000 + PROTECTED, EXPENDABLE - 1)
}

fn memory_request(container: &Container) -> i64 {
    amount(container.resources.as_ref().and_then(|r| r.requests.as_ref()), "memory").value()
}

/// Memory that the pod asks for as a whole and no container claims, divided among them.
fn unclaimed_share(spec: &PodSpec) -> i64 {
    let own = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let asked = amount(own, "memory").value();
    let containers = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    if !has_pod_level(own) || asked == 0 || containers == 0 {
        return 0;
    }
    let claimed = container_requests(spec).get("memory").map_or(0, |a| a.value());
    (asked - claimed) / containers as i64
}
