//! What the kernel of this machine can do for containers' memory, and what the configuration makes of it: swap, the end of a
//! container that runs out of memory, huge pages, memory that is kept for those who asked for it.

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::aggregate::amount;
use super::linux::{LinuxResources, PodCgroupResources, page_size_name, qos_cgroup_shares};
use super::memory_qos::{KeptMemory, MemoryQos};
use crate::config::{KubeletConfiguration, SwapBehavior};
use crate::manifest::{CONFIG_MIRROR, CONFIG_SOURCE};
use crate::qos::{QosClass, qos_of};

/// Pods of this priority and above are critical to the cluster.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// What the machine reports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// One tree of cgroups for all controllers.
    pub cgroup_v2: bool,
    /// Whether cgroups can bound swap.
    pub swap_controller: bool,
    /// Whether anything is used to swap to.
    pub swap_on: bool,
    pub swap_bytes: u64,
    pub memory_bytes: u64,
    /// What all pods together may use of it.
    pub allocatable_memory_bytes: u64,
    /// Of a page that is not huge.
    pub page_bytes: u64,
    /// In bytes, of every size of huge pages that the kernel has.
    pub page_sizes: Vec<u64>,
}

/// How containers are bounded on this machine, beside what they ask for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostResources {
    facts: HostFacts,
    limited_swap: bool,
    /// Whether all processes of a container end when it runs out of memory.
    kill_all: bool,
    memory_qos: Option<MemoryQos>,
}

/// What the cgroups above the pods' own are given, which follows the pods in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QosCgroups {
    pub burstable_shares: i64,
    pub all_pods: KeptMemory,
    pub burstable: KeptMemory,
}

/// Why a node must not run with this configuration on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostRefusal {
    #[error(
        "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false (failSwapOn)"
    )]
    SwapOn,
    #[error(
        "singleProcessOOMKill: false needs cgroup v2, and this machine has v1: leave it out or set it to true"
    )]
    KillAll,
}

impl HostResources {
    pub fn new(config: &KubeletConfiguration, facts: HostFacts) -> Result<Self, HostRefusal> {
        if facts.swap_on && config.fail_swap_on {
            return Err(HostRefusal::SwapOn);
        }
        if config.single_process_oom_kill == Some(false) && !facts.cgroup_v2 {
            return Err(HostRefusal::KillAll);
        }
        let kill_all = facts.cgroup_v2 && config.single_process_oom_kill != Some(true);
        let limited_swap = facts.cgroup_v2 && config.memory_swap.swap_behavior == SwapBehavior::LimitedSwap;
        let memory_qos = MemoryQos::configured(config, facts.allocatable_memory_bytes, facts.page_bytes)
            .filter(|_| facts.cgroup_v2);
        Ok(Self { facts, limited_swap, kill_all, memory_qos })
    }

    /// What is configured and has no effect, because it needs cgroup v2.
    pub fn without_effect(config: &KubeletConfiguration, cgroup_v2: bool) -> Vec<&'static str> {
        let limited = config.memory_swap.swap_behavior == SwapBehavior::LimitedSwap;
        let memory_qos = MemoryQos::configured(config, 0, 0).is_some();
        let fields =
            [(limited, "memorySwap.swapBehavior LimitedSwap"), (memory_qos, "featureGates MemoryQoS")];
        fields.into_iter().filter(|(given, _)| *given && !cgroup_v2).map(|(_, name)| name).collect()
    }

    /// Adds to what a container asks for what holds on this machine.
    pub fn complete(&self, pod: &Pod, container: &Container, resources: &mut LinuxResources) {
        if self.kill_all {
            resources.unified.insert("memory.oom.group".into(), "1".into());
        }
        if self.facts.swap_controller {
            if self.facts.cgroup_v2 {
                let swap = self.swap_limit(pod, container).unwrap_or(0);
                resources.unified.insert("memory.swap.max".into(), swap.to_string());
            } else {
                // Memory and swap together: no more than the memory alone. Zero is no limit, for both.
                resources.memory_swap_limit_bytes = resources.memory_limit_bytes;
            }
        }
        if let Some(qos) = &self.memory_qos {
            qos.container(pod, container, &mut resources.unified);
        }
        resources.hugepage_limits = self.page_limits(&resources.hugepage_limits);
    }

    /// The same for what the runtime is told of a pod as a whole, if it is told anything.
    pub fn complete_sandbox(&self, mut resources: LinuxResources) -> LinuxResources {
        if self.kill_all && resources != LinuxResources::default() {
            resources.unified.insert("memory.oom.group".into(), "1".into());
        }
        resources
    }

    /// The same for the cgroup of a pod.
    pub fn complete_pod(&self, pod: &Pod, resources: &mut PodCgroupResources) {
        resources.hugepages = self.page_limits(&resources.hugepages);
        resources.kept_memory = self.memory_qos.map(|qos| qos.pod(pod)).unwrap_or_default();
    }

    /// What the cgroups above those of these pods are given.
    pub fn classes<'a>(&self, pods: impl Iterator<Item = &'a Pod> + Clone) -> QosCgroups {
        let kept = self.memory_qos.map(|qos| qos.classes(pods.clone()));
        let (all_pods, burstable) = kept.unwrap_or_default();
        QosCgroups { burstable_shares: qos_cgroup_shares(QosClass::Burstable, pods), all_pods, burstable }
    }

    /// A limit for every page size of this machine. What was not asked for is not to be had.
    fn page_limits(&self, asked: &[(String, u64)]) -> Vec<(String, u64)> {
        let names = self.facts.page_sizes.iter().map(|size| page_size_name(*size));
        let limit = |name: &String| asked.iter().find(|(asked, _)| asked == name).map_or(0, |(_, n)| *n);
        names.map(|name| (name.clone(), limit(&name))).collect()
    }

    /// Whether a container may use any of the machine's swap.
    pub(crate) fn may_swap(&self, pod: &Pod, container: &Container) -> bool {
        self.swap_limit(pod, container).is_some()
    }

    /// The part of the machine's swap that is the container's part of its memory. None where it gets no swap: only
    /// containers that ask for less memory than they may use do, and none of critical pods.
    fn swap_limit(&self, pod: &Pod, container: &Container) -> Option<i64> {
        let of = |list| amount(list, "memory").value();
        let own = container.resources.as_ref();
        let (request, limit) =
            (of(own.and_then(|r| r.requests.as_ref())), of(own.and_then(|r| r.limits.as_ref())));
        let total = i64::try_from(self.facts.memory_bytes).unwrap_or(i64::MAX);
        let has_swap = self.limited_swap
            && !is_critical(pod)
            && qos_of(pod) == QosClass::Burstable
            && request != limit
            && (1..=total).contains(&request);
        // In floating point, as the kubelet computes it: to the byte the same.
        has_swap.then(|| (request as f64 / total as f64 * self.facts.swap_bytes as f64) as i64)
    }
}

/// Whether the node or the cluster does not work without it.
fn is_critical(pod: &Pod) -> bool {
    let annotation = |name: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(name));
    annotation(CONFIG_SOURCE).is_some_and(|source| source != "api")
        || annotation(CONFIG_MIRROR).is_some()
        || pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= SYSTEM_CRITICAL)
}
