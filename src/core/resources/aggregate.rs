//! What a pod asks for in sum.
//!
//! Main containers run together, so they add up. An init container runs alone beside the sidecars that started before
//! it, so the pod needs the largest of those moments or the sum of everything that stays, whichever is more.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::quantity::{Amount, BadQuantity, amount_of, to_quantity};

pub type ResourceList = BTreeMap<String, Amount>;

/// Requests of the whole pod: containers, overridden by pod-level requests, plus the runtime class's overhead.
pub fn pod_requests(spec: &PodSpec) -> ResourceList {
    let mut sum = requests_without_overhead(spec);
    if let Some(overhead) = &spec.overhead {
        add(&mut sum, &amounts(Some(overhead)));
    }
    sum
}

/// Limits of the whole pod. The overhead only raises limits that are there: no limit plus something is no limit.
pub fn pod_limits(spec: &PodSpec) -> ResourceList {
    let mut sum = limits_without_overhead(spec);
    for (name, extra) in amounts(spec.overhead.as_ref()) {
        if let Some(limit) = sum.get_mut(&name)
            && !limit.is_zero()
        {
            *limit = *limit + extra;
        }
    }
    sum
}

pub(super) fn requests_without_overhead(spec: &PodSpec) -> ResourceList {
    let mut sum = container_requests(spec);
    if let Some(own) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
        override_pod_level(&mut sum, own);
    }
    sum
}

pub(super) fn limits_without_overhead(spec: &PodSpec) -> ResourceList {
    let mut sum = aggregate(spec, |r| r.limits.as_ref());
    if let Some(own) = spec.resources.as_ref().and_then(|r| r.limits.as_ref()) {
        override_pod_level(&mut sum, own);
    }
    sum
}

/// Requests of the containers alone, without pod-level requests and overhead.
pub(super) fn container_requests(spec: &PodSpec) -> ResourceList {
    aggregate(spec, |r| r.requests.as_ref())
}

/// A restartable init container: it starts in its turn and then stays beside the main containers.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Reads every quantity of a pod once. Later sums take an unreadable one for zero, which is only right for a pod
/// that was refused here.
pub fn check_quantities(pod: &Pod) -> Result<(), BadQuantity> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let requirements = containers.filter_map(|c| c.resources.as_ref()).chain(spec.resources.as_ref());
    let lists =
        requirements.flat_map(|r| [r.requests.as_ref(), r.limits.as_ref()]).chain([spec.overhead.as_ref()]);
    for quantity in lists.flatten().flat_map(BTreeMap::values) {
        let amount = amount_of(quantity)?;
        if amount < Amount::ZERO {
            return Err(BadQuantity { text: quantity.0.clone(), problem: "is negative" });
        }
    }
    Ok(())
}

/// Back into the API's form.
pub fn render(list: &ResourceList) -> BTreeMap<String, Quantity> {
    list.iter().map(|(name, amount)| (name.clone(), to_quantity(*amount))).collect()
}

pub(crate) fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> ResourceList {
    list.into_iter().flatten().map(|(name, q)| (name.clone(), amount_of(q).unwrap_or_default())).collect()
}

pub(crate) fn amount(list: Option<&BTreeMap<String, Quantity>>, name: &str) -> Amount {
    list.and_then(|l| l.get(name)).and_then(|q| amount_of(q).ok()).unwrap_or_default()
}

pub(crate) fn is_zero(list: Option<&BTreeMap<String, Quantity>>, name: &str) -> bool {
    amount(list, name).is_zero()
}

/// Pod-level resources exist for cpu, memory and huge pages.
pub(crate) fn has_pod_level(list: Option<&BTreeMap<String, Quantity>>) -> bool {
    list.is_some_and(|l| l.keys().any(|name| is_pod_level(name)))
}

pub(crate) fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

fn override_pod_level(sum: &mut ResourceList, own: &BTreeMap<String, Quantity>) {
    for (name, amount) in amounts(Some(own)) {
        if is_pod_level(&name) {
            sum.insert(name, amount);
        }
    }
}

fn aggregate(
    spec: &PodSpec,
    pick: impl Fn(&ResourceRequirements) -> Option<&BTreeMap<String, Quantity>>,
) -> ResourceList {
    let of = |c: &Container| amounts(c.resources.as_ref().and_then(&pick));
    let mut staying = ResourceList::new();
    for container in &spec.containers {
        add(&mut staying, &of(container));
    }
    let mut sidecars = ResourceList::new();
    let mut starting = ResourceList::new();
    for container in spec.init_containers.iter().flatten() {
        let mut moment = of(container);
        if is_sidecar(container) {
            add(&mut staying, &moment);
            add(&mut sidecars, &moment);
            moment = sidecars.clone();
        } else {
            add(&mut moment, &sidecars);
        }
        raise(&mut starting, &moment);
    }
    raise(&mut staying, &starting);
    staying
}

pub(super) fn add(sum: &mut ResourceList, more: &ResourceList) {
    for (name, amount) in more {
        sum.entry(name.clone()).and_modify(|a| *a = *a + *amount).or_insert(*amount);
    }
}

fn raise(sum: &mut ResourceList, other: &ResourceList) {
    for (name, amount) in other {
        sum.entry(name.clone()).and_modify(|a| *a = (*a).max(*amount)).or_insert(*amount);
    }
}
