//! Requests and limits as the kernel's cgroups take them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::aggregate::{
    ResourceList, add, amount, amounts, has_pod_level, is_sidecar, is_zero, pod_limits, pod_requests,
};
use super::memory_qos::KeptMemory;
use super::oom::oom_score_adj;
use super::quantity::Amount;
use crate::qos::{QosClass, qos_of};

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
/// The kernel takes no quota shorter than a millisecond.
const MIN_QUOTA_US: i64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCapacity {
    pub milli_cpu: i64,
    pub memory_bytes: i64,
}

/// What one container's cgroup is given. Zero means unset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinuxResources {
    pub cpu_shares: i64,
    pub cpu_quota: i64,
    pub cpu_period: i64,
    pub memory_limit_bytes: i64,
    /// Memory and swap together; for cgroup v1 only.
    pub memory_swap_limit_bytes: i64,
    pub oom_score_adj: i64,
    /// By page size as the kernel names it, such as 2MB.
    pub hugepage_limits: Vec<(String, u64)>,
    pub unified: BTreeMap<String, String>,
    /// In the kernel's list format; empty leaves the choice to the kernel.
    pub cpuset_cpus: String,
    pub cpuset_mems: String,
}

/// What a pod's own cgroup is given. None leaves the kernel's default, which is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodCgroupResources {
    pub cpu_shares: Option<i64>,
    /// -1 for no quota.
    pub cpu_quota: Option<i64>,
    pub cpu_period: Option<i64>,
    pub memory_limit: Option<i64>,
    /// By page size as the kernel names it.
    pub hugepages: Vec<(String, u64)>,
    pub kept_memory: KeptMemory,
}

pub fn container_resources(
    pod: &Pod,
    container: &Container,
    node: &NodeCapacity,
    cpu_cfs_quota: bool,
    period_us: i64,
) -> LinuxResources {
    let own = container.resources.as_ref();
    let requests = own.and_then(|r| r.requests.as_ref());
    let cpu_limit = limit(pod, own, "cpu");
    // Without a request the limit stands in for it, as the API's defaulting has it.
    let cpu_request = match requests.and_then(|r| r.get("cpu")) {
        Some(_) => amount(requests, "cpu"),
        None => cpu_limit,
    };
    LinuxResources {
        cpu_shares: cpu_shares(cpu_request.milli()),
        cpu_quota: if cpu_cfs_quota { cpu_quota(cpu_limit.milli(), period_us) } else { 0 },
        cpu_period: if cpu_cfs_quota { period_us } else { 0 },
        memory_limit_bytes: limit(pod, own, "memory").value(),
        memory_swap_limit_bytes: 0,
        oom_score_adj: oom_score_adj(pod, container, node.memory_bytes),
        hugepage_limits: hugepages(&hugepage_list(pod, own)),
        unified: BTreeMap::new(),
        cpuset_cpus: String::new(),
        cpuset_mems: String::new(),
    }
}

/// The values of the pod's cgroup, which bounds all its containers together. A burstable pod is only bounded where
/// every container is, else the one without a limit would be squeezed by those that have one.
pub fn pod_cgroup(pod: &Pod, cpu_cfs_quota: bool, period_us: i64) -> PodCgroupResources {
    let Some(spec) = &pod.spec else { return PodCgroupResources::default() };
    let requests = pod_requests(spec);
    let limits = pod_limits(spec);
    let of = |list: &ResourceList, name: &str| list.get(name).copied().unwrap_or_default();

    let shares = cpu_shares(of(&requests, "cpu").milli());
    let quota = if cpu_cfs_quota { cpu_quota(of(&limits, "cpu").milli(), period_us) } else { -1 };
    let memory = of(&limits, "memory").value();
    let hugepages = hugepages(&requests);
    let (bound_cpu, bound_memory) = match qos_of(pod) {
        QosClass::Guaranteed => (true, true),
        QosClass::Burstable => (bounded(spec, "cpu"), bounded(spec, "memory")),
        QosClass::BestEffort => {
            return PodCgroupResources { cpu_shares: Some(MIN_SHARES), hugepages, ..Default::default() };
        }
    };
    PodCgroupResources {
        cpu_shares: Some(shares),
        cpu_quota: bound_cpu.then_some(quota),
        cpu_period: bound_cpu.then_some(period_us),
        memory_limit: bound_memory.then_some(memory),
        hugepages,
        kept_memory: KeptMemory::default(),
    }
}

/// cpu.shares of a QoS class's cgroup: the burstable one weighs what its pods ask for, best effort gets the least.
pub fn qos_cgroup_shares<'a>(class: QosClass, pods: impl IntoIterator<Item = &'a Pod>) -> i64 {
    if class != QosClass::Burstable {
        return MIN_SHARES;
    }
    let burstable = pods.into_iter().filter(|p| qos_of(p) == QosClass::Burstable);
    let milli = burstable
        .filter_map(|p| p.spec.as_ref())
        .map(|spec| pod_requests(spec).get("cpu").map_or(0, |a| a.milli()))
        .fold(0i64, i64::saturating_add);
    cpu_shares(milli)
}

pub fn cpu_shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Microseconds of cpu time in a period; zero when there is no limit.
pub fn cpu_quota(milli: i64, period_us: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(period_us) / 1000).max(MIN_QUOTA_US) }
}

/// A container without a limit of its own runs under the pod's.
fn limit(pod: &Pod, own: Option<&ResourceRequirements>, name: &str) -> Amount {
    let own = amount(own.and_then(|r| r.limits.as_ref()), name);
    if own.is_zero() { amount(pod_level_limits(pod), name) } else { own }
}

fn pod_level_limits(pod: &Pod) -> Option<&BTreeMap<String, Quantity>> {
    pod.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(|r| r.limits.as_ref())
}

/// Whether a limit holds at every moment of the pod's life: for each main container, and for each init container
/// together with the sidecars that run beside it.
fn bounded(spec: &PodSpec, name: &str) -> bool {
    let pod_limits = spec.resources.as_ref().and_then(|r| r.limits.as_ref());
    if has_pod_level(pod_limits) && !is_zero(pod_limits, name) {
        return true;
    }
    let limits = |c: &Container| amounts(c.resources.as_ref().and_then(|r| r.limits.as_ref()));
    let set = |list: &ResourceList| list.get(name).is_some_and(|a| !a.is_zero());
    let mut sidecars = ResourceList::new();
    let init = spec.init_containers.iter().flatten().all(|c| {
        let mut moment = limits(c);
        if is_sidecar(c) {
            add(&mut sidecars, &moment);
            return set(&sidecars);
        }
        add(&mut moment, &sidecars);
        set(&moment)
    });
    init && spec.containers.iter().all(|c| set(&limits(c)))
}

fn hugepage_list(pod: &Pod, own: Option<&ResourceRequirements>) -> ResourceList {
    let mut list = amounts(pod_level_limits(pod));
    list.extend(amounts(own.and_then(|r| r.limits.as_ref())));
    list
}

fn hugepages(list: &ResourceList) -> Vec<(String, u64)> {
    list.iter()
        .filter_map(|(name, amount)| {
            let size = name.strip_prefix("hugepages-")?.parse::<Amount>().ok()?.value();
            Some((page_size_name(u64::try_from(size).ok()?), u64::try_from(amount.value()).unwrap_or(0)))
        })
        .collect()
}

/// Bytes by page size, under the names that the kernel has for the sizes.
pub fn page_limits(sizes: &BTreeMap<u64, u64>) -> BTreeMap<String, u64> {
    sizes.iter().map(|(size, bytes)| (page_size_name(*size), *bytes)).collect()
}

/// The kernel writes page sizes in KB, MB or GB, of 1024 each.
pub(super) fn page_size_name(bytes: u64) -> String {
    let (mut size, mut unit) = (bytes, 0);
    while size >= 1024 && size % 1024 == 0 && unit < 3 {
        size /= 1024;
        unit += 1;
    }
    format!("{size}{}", ["B", "KB", "MB", "GB"][unit])
}
