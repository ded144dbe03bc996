//! What of the node's resources a pod was granted, and what its cgroups have of it.
//!
//! A spec says what is wanted. It may change while the pod runs (in-place resize). What was allocated holds until the node can grant
//! the new wish, and everything but the API's own spec goes by it; what is actuated follows what was allocated.

mod checkpoint;
mod grant;
mod resize;
mod size;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Deserializer, Serialize};

pub use checkpoint::{BadAllocations, decode, encode};
pub use grant::{Rank, Refused, ResizeRules, grant, rank, reported_pending, requested};
pub use resize::{Part, PodPart, Resize, ResizeStep, Shrink};
pub(crate) use resize::{Verdict, in_progress, resize, verdict};
pub use size::Size;
pub(crate) use words::{completed, failed};
pub use words::{pending, started};

use crate::observed::{ContainerState, ObservedContainer, ObservedPod};
use crate::resources::{actual_resources, amounts, is_pod_level};

/// Resources by container, and those of the pod as a whole. Serialized it is an entry of the kubelet's checkpoints.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Allocation {
    #[serde(default, deserialize_with = "or_empty")]
    pub container_resources: BTreeMap<String, ResourceRequirements>,
    #[serde(default)]
    pub pod_level_resources: Option<ResourceRequirements>,
}

impl Allocation {
    /// What a spec asks for.
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let of = |c: &Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
        Self {
            container_resources: containers(spec).map(of).collect(),
            pod_level_resources: spec.resources.clone(),
        }
    }

    /// What was allocated to a pod whose record is lost: its spec, unless its status says that it still waits for that.
    pub fn reported(pod: &Pod) -> Self {
        let mut allocation = Self::of(pod);
        let Some(status) = pod.status.as_ref().filter(|_| reported_pending(pod).is_some()) else {
            return allocation;
        };
        let lists = [&status.init_container_statuses, &status.container_statuses];
        for shown in lists.into_iter().flatten().flatten() {
            if let (Some(own), Some(resources)) =
                (allocation.container_resources.get_mut(&shown.name), &shown.resources)
            {
                own.clone_from(resources);
                own.requests = shown.allocated_resources.clone().or_else(|| resources.requests.clone());
            }
        }
        if let (Some(own), Some(shown)) = (&mut allocation.pod_level_resources, &status.resources) {
            own.requests.clone_from(&shown.requests);
            own.limits.clone_from(&shown.limits);
        }
        allocation
    }

    /// Whether a spec asks for something else.
    pub fn differs_from(&self, pod: &Pod) -> bool {
        let Some(spec) = &pod.spec else { return false };
        let none = ResourceRequirements::default();
        let pod_level = |r: &Option<ResourceRequirements>| r.clone().unwrap_or_default();
        !equal(&pod_level(&self.pod_level_resources), &pod_level(&spec.resources))
            || containers(spec).any(|c| {
                let own = self.container_resources.get(&c.name);
                own.is_some_and(|own| !equal(own, c.resources.as_ref().unwrap_or(&none)))
            })
    }

    /// The pod as it was granted: the same value where the spec asks for nothing else.
    pub fn granted(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        if self.differs_from(pod) { Arc::new(self.over(pod)) } else { pod.clone() }
    }

    /// A pod with these resources in place of its own.
    pub(crate) fn over(&self, pod: &Pod) -> Pod {
        let mut pod = pod.clone();
        let Some(spec) = &mut pod.spec else { return pod };
        spec.resources.clone_from(&self.pod_level_resources);
        let inits = spec.init_containers.iter_mut().flatten();
        for c in inits.chain(&mut spec.containers) {
            if let Some(own) = self.container_resources.get(&c.name) {
                c.resources = Some(own.clone());
            }
        }
        pod
    }

    /// What the cgroups of a pod have that was just made, or that runs as its spec has it.
    pub(crate) fn actuated(pod: &Pod) -> Self {
        let mut allocation = Self::of(pod);
        let pod_level = allocation.pod_level_resources.as_ref();
        for own in allocation.container_resources.values_mut() {
            own.limits = effective_limits(pod_level, own);
        }
        allocation
    }

    /// One container was made as the pod has it now.
    pub(crate) fn container_made(&mut self, pod: &Pod, name: &str) {
        let made = Self::actuated(pod).container_resources.remove(name);
        self.container_resources.extend(made.map(|resources| (name.to_owned(), resources)));
    }

    /// What runs, found by an agent that has just started. A record is believed for what the runtime does not contradict: where the
    /// runtime has what the spec comes to, that is what the container has. Nothing is restarted for a record that is lost.
    pub(crate) fn found(record: Option<&Self>, pod: &Pod, observed: &ObservedPod) -> Option<Self> {
        let wanted = Self::actuated(pod);
        let running: Vec<&ObservedContainer> = wanted
            .container_resources
            .keys()
            .filter_map(|name| observed.latest(name).filter(|c| c.state == ContainerState::Running))
            .collect();
        if record.is_none() && running.is_empty() {
            return None;
        }
        let mut found = record.cloned().unwrap_or_else(|| wanted.clone());
        for c in running {
            let own = &wanted.container_resources[&c.name];
            let real = actual_resources(own, c);
            let matches = c.resources.is_some() && Size::of(None, &real) == Size::of(None, own);
            match found.container_resources.get(&c.name).filter(|_| record.is_some()) {
                Some(known) if matches && Size::of(None, known).is_told_apart_from(Size::of(None, own)) => {
                    found.container_resources.insert(c.name.clone(), own.clone());
                }
                Some(_) => {}
                None => {
                    found.container_resources.insert(c.name.clone(), real);
                }
            }
        }
        Some(found)
    }
}

/// Init and main containers, which both can be resized.
pub(crate) fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// By amount: 1 and 1000m are the same, and so are none and an empty list.
fn equal(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    let lists = |r: &ResourceRequirements| (amounts(r.requests.as_ref()), amounts(r.limits.as_ref()));
    let claims = |r: &ResourceRequirements| r.claims.clone().unwrap_or_default();
    lists(a) == lists(b) && claims(a) == claims(b)
}

/// A container without a limit of its own runs under the pod's.
fn effective_limits(
    pod_level: Option<&ResourceRequirements>,
    own: &ResourceRequirements,
) -> Option<BTreeMap<String, Quantity>> {
    let of_pod = pod_level.and_then(|r| r.limits.as_ref());
    let mut limits = own.limits.clone().unwrap_or_default();
    for (name, limit) in of_pod.into_iter().flatten().filter(|(name, _)| is_pod_level(name)) {
        limits.entry(name.clone()).or_insert_with(|| limit.clone());
    }
    if limits.is_empty() { own.limits.clone() } else { Some(limits) }
}

/// Go writes an empty map as null.
fn or_empty<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, ResourceRequirements>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
