//! The resources that a status shows: what was granted, and what a running container really has.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::allocation::Allocation;
use crate::observed::{ContainerState, ObservedContainer};
use crate::resources::{
    ResourceList, actual_resources, amount, amount_of, pod_cgroup, pod_limits, pod_requests, render,
};

/// status.allocatedResources of the pod.
pub(super) fn allocated(spec: &PodSpec) -> Option<BTreeMap<String, Quantity>> {
    let requests = render(&pod_requests(spec));
    (!requests.is_empty()).then_some(requests)
}

pub(super) fn fill(
    status: &mut ContainerStatus,
    container: &Container,
    observed: &ObservedContainer,
    actuated: Option<&Allocation>,
) {
    let asked = container.resources.clone().unwrap_or_default();
    status.allocated_resources = asked.requests.clone().filter(|r| !r.is_empty());
    let mut shown = asked;
    if observed.state == ContainerState::Running {
        shown = actual_resources(&shown, observed);
        // No runtime reports a request for memory.
        let own = actuated.and_then(|a| a.container_resources.get(&container.name));
        let memory = own.and_then(|r| r.requests.as_ref()).and_then(|r| r.get("memory"));
        if let (Some(requests), Some(memory)) = (&mut shown.requests, memory)
            && amount(Some(requests), "memory") != amount_of(memory).unwrap_or_default()
        {
            requests.insert("memory".into(), memory.clone());
        }
    }
    shown.claims = None;
    status.resources = Some(shown);
}

/// status.resources of the pod: what its own cgroup has, once it runs.
pub(super) fn of_pod(pod: &Pod, actuated: Option<&Allocation>, running: bool) -> ResourceRequirements {
    let actuated = actuated.filter(|_| running).map(|a| a.over(pod));
    let pod = actuated.as_ref().unwrap_or(pod);
    let Some(spec) = &pod.spec else { return ResourceRequirements::default() };
    let mut limits = pod_limits(spec);
    if running {
        let bounds = pod_cgroup(pod, true, 100_000);
        limits.retain(|name, _| match name.as_str() {
            "cpu" => bounds.cpu_quota.is_some(),
            "memory" => bounds.memory_limit.is_some(),
            _ => spec.resources.is_some(),
        });
    }
    let list = |list: ResourceList| Some(render(&list)).filter(|list| !list.is_empty());
    ResourceRequirements { claims: None, limits: list(limits), requests: list(pod_requests(spec)) }
}
