//! The resources that a status shows: what was granted, and what a running container really has.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::observed::{ContainerState, ObservedContainer};
use crate::resources::{Amount, amount, cpu_quota, cpu_shares, pod_requests, render, to_quantity};

/// status.allocatedResources of the pod.
pub(super) fn allocated(spec: &PodSpec) -> Option<BTreeMap<String, Quantity>> {
    let requests = render(&pod_requests(spec));
    (!requests.is_empty()).then_some(requests)
}

pub(super) fn fill(status: &mut ContainerStatus, container: &Container, observed: &ObservedContainer) {
    let mut shown = container.resources.clone().unwrap_or_default();
    status.allocated_resources = shown.requests.clone().filter(|r| !r.is_empty());
    if observed.state == ContainerState::Running {
        actual(&mut shown, observed);
    }
    shown.claims = None;
    status.resources = Some(shown);
}

/// Replaces what was asked for by what the runtime reports. Where the two are equal after the kernel's own rounding
/// the words of the spec stay, so that comparing them finds no difference that nobody made.
fn actual(shown: &mut ResourceRequirements, observed: &ObservedContainer) {
    let Some(real) = &observed.resources else { return };
    if let Some(limits) = &mut shown.limits {
        let asked = amount(Some(limits), "cpu").milli();
        if real.cpu_period > 0 && real.cpu_quota > 0 && cpu_quota(asked, real.cpu_period) != real.cpu_quota {
            let milli = real.cpu_quota.saturating_mul(1000) / real.cpu_period;
            limits.insert("cpu".into(), to_quantity(Amount::from_milli(milli)));
        }
        let asked = amount(Some(limits), "memory").value();
        if real.memory_limit_bytes > 0 && asked != real.memory_limit_bytes {
            limits.insert("memory".into(), to_quantity(Amount::from_bytes(real.memory_limit_bytes)));
        }
    }
    if let Some(requests) = &mut shown.requests {
        let asked = amount(Some(requests), "cpu").milli();
        if real.cpu_shares > 0 && requests.contains_key("cpu") && cpu_shares(asked) != real.cpu_shares {
            let milli = (real.cpu_shares.saturating_mul(1000) + 1023) / 1024;
            requests.insert("cpu".into(), to_quantity(Amount::from_milli(milli)));
        }
    }
}
