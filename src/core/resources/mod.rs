//! Quantities, what a pod asks for in sum, and the numbers that the kernel is given for it.

mod actual;
mod aggregate;
mod host;
mod linux;
mod memory_qos;
mod oom;
mod quantity;
mod sandbox;
#[cfg(test)]
mod tests;

pub use aggregate::{ResourceList, check_quantities, is_sidecar, pod_limits, pod_requests, render};
pub use host::{HostFacts, HostRefusal, HostResources, QosCgroups};
pub use linux::{
    LinuxResources, NodeCapacity, PodCgroupResources, container_resources, cpu_quota, cpu_shares,
    page_limits, pod_cgroup, qos_cgroup_shares,
};
pub use memory_qos::KeptMemory;
pub use oom::oom_score_adj;
pub use quantity::{Amount, BadQuantity, amount_of, to_quantity};
pub use sandbox::{sandbox_overhead, sandbox_resources};

pub(crate) use actual::actual_resources;
pub(crate) use aggregate::{amount, amounts, has_pod_level, is_pod_level};
