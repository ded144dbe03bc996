//! The four figures of a container or a pod that can change while it runs.

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::resources::amount;

/// CPU in thousandths, memory in bytes. Zero: nothing was asked for, or there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    pub cpu_request: i64,
    pub cpu_limit: i64,
    pub memory_request: i64,
    pub memory_limit: i64,
}

impl Size {
    /// Of a container in a pod with resources of its own.
    pub fn of(pod_level: Option<&ResourceRequirements>, own: &ResourceRequirements) -> Self {
        let limits = super::effective_limits(pod_level, own);
        let (limits, requests) = (limits.as_ref(), own.requests.as_ref());
        Self {
            cpu_request: amount(requests, "cpu").milli(),
            cpu_limit: amount(limits, "cpu").milli(),
            memory_request: amount(requests, "memory").value(),
            memory_limit: amount(limits, "memory").value(),
        }
    }

    /// Of a pod as a whole, if it has resources of its own.
    pub fn of_pod(pod_level: Option<&ResourceRequirements>) -> Self {
        pod_level.map_or_else(Self::default, |own| Self::of(None, own))
    }

    /// Whether the runtime can tell them apart. No request for memory is in a cgroup.
    pub(super) fn is_told_apart_from(self, other: Self) -> bool {
        let seen = |s: Self| (s.cpu_request, s.cpu_limit, s.memory_limit);
        seen(self) != seen(other)
    }
}
