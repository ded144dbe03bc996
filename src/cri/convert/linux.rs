//! Resource numbers in the runtime's layout.

use keelson_core::resources::LinuxResources;
use keelson_proto::runtime::v1::{HugepageLimit, LinuxContainerResources};

pub fn linux_resources(given: &LinuxResources) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: given.cpu_period,
        cpu_quota: given.cpu_quota,
        cpu_shares: given.cpu_shares,
        memory_limit_in_bytes: given.memory_limit_bytes,
        memory_swap_limit_in_bytes: given.memory_swap_limit_bytes,
        oom_score_adj: given.oom_score_adj,
        hugepage_limits: given
            .hugepage_limits
            .iter()
            .map(|(page_size, limit)| HugepageLimit { page_size: page_size.clone(), limit: *limit })
            .collect(),
        unified: given.unified.clone(),
        cpuset_cpus: given.cpuset_cpus.clone(),
        cpuset_mems: given.cpuset_mems.clone(),
    }
}
