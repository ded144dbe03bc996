//! What the settings say about the Node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Taint;

use super::{Amounts, Capacity, Reserved};
use crate::config::{self, KubeletConfiguration, QuantityText, Settings};
use crate::cpuset::CpuSet;
use crate::node_api::{Exposure, exposure};

/// What an administrator wants of the Node when it is created. Afterwards only the labels are kept as they are here.
#[derive(Debug, Clone, Default)]
pub struct Registration {
    /// From --node-labels; checked by [`super::check_labels`].
    pub labels: BTreeMap<String, String>,
    /// Only put on when the node is created: afterwards taints belong to whoever administers the cluster.
    pub taints: Vec<Taint>,
    pub provider_id: Option<String>,
    /// A cloud controller initializes this node and writes its addresses.
    pub external_cloud: bool,
    /// From --node-ip, in its order.
    pub node_ips: Vec<IpAddr>,
}

/// Keeps pods away until a cloud controller has initialized the node, and taken it off.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

impl Registration {
    pub fn of(settings: &Settings) -> Self {
        let mut taints: Vec<_> = settings.kubelet.register_with_taints.iter().map(taint).collect();
        if settings.external_cloud {
            taints.push(Taint {
                key: UNINITIALIZED.to_owned(),
                value: Some("true".to_owned()),
                effect: "NoSchedule".to_owned(),
                ..Taint::default()
            });
        }
        Self {
            labels: settings.node_labels.clone(),
            taints,
            external_cloud: settings.external_cloud,
            node_ips: settings.node_ips.clone(),
            provider_id: Some(settings.kubelet.provider_id.clone()).filter(|id| !id.is_empty()),
        }
    }
}

impl Reserved {
    /// Percentages are of `capacity`.
    pub fn of(config: &KubeletConfiguration, capacity: &Capacity) -> Self {
        let hard = |signal: &str, of: u64| config.eviction_hard.get(signal).map_or(0, |t| t.resolve(of));
        let (mut system, mut agent) = (amounts(&config.system_reserved), amounts(&config.kube_reserved));
        // Named CPUs are the ones that are reserved, whatever amounts say.
        if let Some(named) = config.reserved_system_cpus.parse::<CpuSet>().ok().filter(|s| !s.is_empty()) {
            system.cpu_millis = named.len() as u64 * 1000;
            agent.cpu_millis = 0;
        }
        Self {
            system,
            agent,
            eviction: Amounts {
                cpu_millis: 0,
                memory_bytes: hard("memory.available", capacity.memory_bytes),
                ephemeral_storage_bytes: hard("nodefs.available", capacity.ephemeral_storage_bytes),
            },
        }
    }
}

/// The port of the node's API as the Node shows it: 0 where nobody listens.
pub fn agent_port(settings: &Settings) -> i32 {
    match exposure(&settings.kubelet, !settings.standalone) {
        Exposure::Served { .. } => settings.kubelet.port,
        Exposure::Off(_) => 0,
    }
}

fn amounts(list: &BTreeMap<String, QuantityText>) -> Amounts {
    let value = |key: &str| list.get(key).map_or(0, |a| u64::try_from(a.value()).unwrap_or(0));
    Amounts {
        cpu_millis: list.get("cpu").map_or(0, |a| u64::try_from(a.milli()).unwrap_or(0)),
        memory_bytes: value("memory"),
        ephemeral_storage_bytes: value("ephemeral-storage"),
    }
}

fn taint(t: &config::Taint) -> Taint {
    Taint {
        key: t.key.clone(),
        value: Some(t.value.clone()).filter(|v| !v.is_empty()),
        effect: t.effect.as_str().to_owned(),
        ..Taint::default()
    }
}
