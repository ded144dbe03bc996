//! Room for the pod: resources and ports.

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{NodeView, Rejection};
use crate::resources::{Amount, ResourceList, amounts, pod_requests};

/// Refuses with the first resource that does not suffice: pods, cpu, memory, storage, then the rest by name.
/// An extended resource that the node does not know is somebody else's to hand out.
pub(super) fn resources(spec: &PodSpec, others: &[&Pod], node: &NodeView) -> Result<(), Rejection> {
    let allocatable = amounts(Some(&node.allocatable));
    let count = others.len() as i64;
    if let Some(pods) = allocatable.get("pods")
        && count + 1 > pods.value()
    {
        return Err(insufficient("pods", 1, count, pods.value()));
    }
    let mut used = ResourceList::new();
    for other in others.iter().filter_map(|p| p.spec.as_ref()) {
        for (name, amount) in pod_requests(other) {
            used.entry(name).and_modify(|a| *a = *a + amount).or_insert(amount);
        }
    }
    let wanted = pod_requests(spec);
    let first = ["cpu", "memory", "ephemeral-storage"];
    let rest = wanted.keys().map(String::as_str).filter(|name| !first.contains(name));
    for name in first.into_iter().chain(rest) {
        let capacity = allocatable.get(name);
        if capacity.is_none() && is_extended(name) {
            continue;
        }
        let count = |amount: Option<&Amount>| {
            let amount = amount.copied().unwrap_or_default();
            if name == "cpu" { amount.milli() } else { amount.value() }
        };
        let (requested, used, capacity) = (count(wanted.get(name)), count(used.get(name)), count(capacity));
        if requested > 0 && requested > capacity.saturating_sub(used) {
            return Err(insufficient(name, requested, used, capacity));
        }
    }
    Ok(())
}

/// Whether every host port that the pod asks for is free. Ports clash when protocol and number are equal and the
/// addresses are, or one of them is all addresses.
pub(super) fn ports_free(spec: &PodSpec, others: &[&Pod]) -> bool {
    let taken: Vec<_> = others.iter().filter_map(|p| p.spec.as_ref()).flat_map(host_ports).collect();
    host_ports(spec).iter().all(|wanted| !taken.iter().any(|other| clash(wanted, other)))
}

#[derive(Debug, Clone)]
struct HostPort {
    ip: String,
    protocol: String,
    port: i32,
}

/// Main containers and sidecars; a plain init container is gone before the pod serves anyone.
fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().flatten().filter(|c| crate::resources::is_sidecar(c));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|p| {
            let port = p.host_port.filter(|port| *port > 0)?;
            let ip = p.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".into());
            let protocol = p.protocol.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| "TCP".into());
            Some(HostPort { ip, protocol, port })
        })
        .collect()
}

fn clash(a: &HostPort, b: &HostPort) -> bool {
    a.port == b.port && a.protocol == b.protocol && (a.ip == b.ip || a.ip == "0.0.0.0" || b.ip == "0.0.0.0")
}

pub(super) fn is_extended(name: &str) -> bool {
    let domain = name.split_once('/').map(|(domain, _)| domain);
    domain.is_some_and(|d| d != "kubernetes.io" && !d.ends_with(".kubernetes.io"))
}

fn insufficient(resource: &str, requested: i64, used: i64, capacity: i64) -> Rejection {
    Rejection {
        reason: format!("OutOf{resource}"),
        message: format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        ),
    }
}
