//! The managers as a configuration and a machine make them. What does not fit is said with the field that is to be changed.

use std::collections::BTreeMap;

use super::{ResourceManagers, Scope};
use crate::config::{
    CpuManagerPolicy, KubeletConfiguration, MemoryManagerPolicy, TopologyManagerPolicy, TopologyManagerScope,
};
use crate::cpu_manager::{Options, StaticPolicy};
use crate::cpuset::CpuSet;
use crate::machine_topology::MachineTopology;
use crate::memory_manager::MemoryPolicy;
use crate::topology_manager::Policy;

/// More nodes than these make too many combinations to look at, unless somebody says otherwise.
const MOST_NUMA_NODES: usize = 8;

/// What is kept from pods: kubeReserved, systemReserved and, of memory, the hard eviction threshold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptFromPods {
    pub cpu_millis: u64,
    /// memory and hugepages-*, in bytes.
    pub memory: BTreeMap<String, u64>,
}

impl ResourceManagers {
    pub fn configured(
        c: &KubeletConfiguration,
        machine: &MachineTopology,
        kept: &KeptFromPods,
    ) -> Result<Self, String> {
        let policy = match c.topology_manager_policy {
            TopologyManagerPolicy::None => Policy::None,
            TopologyManagerPolicy::BestEffort => Policy::BestEffort,
            TopologyManagerPolicy::Restricted => Policy::Restricted,
            TopologyManagerPolicy::SingleNumaNode => Policy::SingleNumaNode,
        };
        let scope = match c.topology_manager_scope {
            TopologyManagerScope::Container => Scope::Container,
            TopologyManagerScope::Pod => Scope::Pod,
        };
        let (closest, most) = topology_options(&c.topology_manager_policy_options)?;
        if policy != Policy::None && machine.nodes.len() > most {
            return Err(format!(
                "topologyManagerPolicy: this machine has {} NUMA nodes, which is more than {most}; \
                 set max-allowable-numa-nodes in topologyManagerPolicyOptions to take the time that it needs",
                machine.nodes.len()
            ));
        }
        let numa = machine.numa(closest && policy != Policy::None)?;
        let cpu = match c.cpu_manager_policy {
            CpuManagerPolicy::None => None,
            CpuManagerPolicy::Static => Some(static_cpus(c, machine, kept, policy)?),
        };
        let memory = match c.memory_manager_policy {
            MemoryManagerPolicy::None => None,
            MemoryManagerPolicy::Static => Some(static_memory(c, machine, kept)?),
        };
        Ok(Self { policy, scope, numa, cpu, memory })
    }
}

fn static_cpus(
    c: &KubeletConfiguration,
    machine: &MachineTopology,
    kept: &KeptFromPods,
    policy: Policy,
) -> Result<StaticPolicy, String> {
    let options = cpu_options(&c.cpu_manager_policy_options, &c.feature_gates)?;
    let topology = machine.cpus();
    if options.align_by_socket && policy == Policy::SingleNumaNode {
        return Err("cpuManagerPolicyOptions: align-by-socket cannot be used with topologyManagerPolicy single-numa-node".into());
    }
    let named: CpuSet = c.reserved_system_cpus.parse().map_err(|e| format!("reservedSystemCPUs: {e}"))?;
    let count = if named.is_empty() { kept.cpu_millis.div_ceil(1000) } else { named.len() as u64 };
    if count == 0 {
        return Err("cpuManagerPolicy: static needs a CPU for the system itself: set reservedSystemCPUs, or cpu in kubeReserved or systemReserved".into());
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    StaticPolicy::new(topology, named, count, options).map_err(|e| format!("cpuManagerPolicy: {e}"))
}

fn static_memory(
    c: &KubeletConfiguration,
    machine: &MachineTopology,
    kept: &KeptFromPods,
) -> Result<MemoryPolicy, String> {
    let mut reserved: BTreeMap<u32, BTreeMap<String, u64>> = BTreeMap::new();
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for reservation in &c.reserved_memory {
        let node =
            machine.nodes.iter().map(|n| n.id).find(|id| i64::from(*id) == i64::from(reservation.numa_node));
        let Some(node) = node else {
            return Err(format!("reservedMemory: this machine has no NUMA node {}", reservation.numa_node));
        };
        for (resource, quantity) in &reservation.limits {
            let bytes = u64::try_from(quantity.value()).unwrap_or(0);
            *sums.entry(resource).or_default() += bytes;
            reserved.entry(node).or_default().insert(resource.clone(), bytes);
        }
    }
    let resources = sums.keys().copied().chain(kept.memory.keys().map(String::as_str));
    for resource in resources.collect::<std::collections::BTreeSet<_>>() {
        let (sum, wanted) =
            (sums.get(resource).copied().unwrap_or(0), kept.memory.get(resource).copied().unwrap_or(0));
        if sum != wanted {
            return Err(format!(
                "reservedMemory: {sum} bytes of {resource} in all, and kubeReserved, systemReserved and evictionHard keep {wanted} from pods; \
                 the two must be the same"
            ));
        }
    }
    if sums.get("memory").copied().unwrap_or(0) == 0 {
        return Err(
            "memoryManagerPolicy: Static needs memory for the system itself: set reservedMemory".into()
        );
    }
    Ok(MemoryPolicy::new(machine.memory(&reserved)))
}

pub(super) fn cpu_options(
    given: &BTreeMap<String, String>,
    gates: &BTreeMap<String, bool>,
) -> Result<Options, String> {
    let mut options = Options::default();
    for (name, value) in given {
        let (field, gate) = match name.as_str() {
            "full-pcpus-only" => (&mut options.full_pcpus_only, None),
            "strict-cpu-reservation" => (&mut options.strict_reservation, None),
            "prefer-align-cpus-by-uncorecache" => (&mut options.by_uncore_cache, None),
            "distribute-cpus-across-numa" => {
                (&mut options.across_numa, Some(("CPUManagerPolicyBetaOptions", true)))
            }
            "align-by-socket" => {
                (&mut options.align_by_socket, Some(("CPUManagerPolicyAlphaOptions", false)))
            }
            "distribute-cpus-across-cores" => {
                (&mut options.across_cores, Some(("CPUManagerPolicyAlphaOptions", false)))
            }
            _ => return Err(format!("cpuManagerPolicyOptions: {name:?} is no option of the static policy")),
        };
        if let Some((gate, default)) = gate
            && !gates.get(gate).copied().unwrap_or(default)
        {
            return Err(format!("cpuManagerPolicyOptions: {name} needs {gate}: true in featureGates"));
        }
        *field = boolean(value)
            .ok_or_else(|| format!("cpuManagerPolicyOptions: {name} is {value:?}, not true or false"))?;
    }
    let excluded = [
        (options.full_pcpus_only && options.across_cores, "full-pcpus-only and distribute-cpus-across-cores"),
        (
            options.across_numa && options.across_cores,
            "distribute-cpus-across-numa and distribute-cpus-across-cores",
        ),
        (
            options.by_uncore_cache && options.across_cores,
            "prefer-align-cpus-by-uncorecache and distribute-cpus-across-cores",
        ),
        (
            options.by_uncore_cache && options.across_numa,
            "prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa",
        ),
    ];
    match excluded.into_iter().find(|(both, _)| *both) {
        Some((_, two)) => Err(format!("cpuManagerPolicyOptions: {two} cannot be used together")),
        None => Ok(options),
    }
}

/// Whether distance counts, and how many NUMA nodes there may be.
fn topology_options(given: &BTreeMap<String, String>) -> Result<(bool, usize), String> {
    let (mut closest, mut most) = (false, MOST_NUMA_NODES);
    for (name, value) in given {
        let field = "topologyManagerPolicyOptions";
        match name.as_str() {
            "prefer-closest-numa-nodes" => {
                closest = boolean(value)
                    .ok_or_else(|| format!("{field}: {name} is {value:?}, not true or false"))?;
            }
            "max-allowable-numa-nodes" => {
                let number = value.parse().ok().filter(|n| *n >= MOST_NUMA_NODES);
                most = number.ok_or_else(|| {
                    format!("{field}: {name} is {value:?}, not a number of at least {MOST_NUMA_NODES}")
                })?;
            }
            _ => return Err(format!("{field}: {name:?} is no option of the topology manager")),
        }
    }
    Ok((closest, most))
}

/// As Go reads one.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{ConfigInput, ConfigText, load};
    use crate::machine_topology::{MachineCore, MachineNode};

    fn machine(nodes: u32) -> MachineTopology {
        let node = |id| MachineNode {
            id,
            cores: vec![MachineCore { socket: id, threads: vec![2 * id, 2 * id + 1], uncore_cache: None }],
            memory_bytes: 1 << 30,
            ..MachineNode::default()
        };
        MachineTopology { nodes: (0..nodes).map(node).collect(), sockets: nodes as usize }
    }

    fn configured(config: serde_json::Value, nodes: u32) -> Result<ResourceManagers, String> {
        let mut text = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"});
        text.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        let config = ConfigText { name: "kubelet.json".into(), text: text.to_string() };
        let input = ConfigInput { config: Some(config), hostname: "node".into(), ..ConfigInput::default() };
        let config = load(&input).unwrap().kubelet;
        let kept = KeptFromPods { cpu_millis: 500, memory: [("memory".to_owned(), 100 << 20)].into() };
        ResourceManagers::configured(&config, &machine(nodes), &kept)
    }

    #[test]
    fn what_does_not_fit_is_said_with_its_field() {
        let cpu = |options: serde_json::Value| json!({"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": options});
        let cases = [
            (cpu(json!({"full": "true"})), 2, "\"full\" is no option"),
            (cpu(json!({"full-pcpus-only": "yes"})), 2, "is \"yes\", not true or false"),
            (
                cpu(json!({"align-by-socket": "true"})),
                2,
                "needs CPUManagerPolicyAlphaOptions: true in featureGates",
            ),
            (
                cpu(
                    json!({"prefer-align-cpus-by-uncorecache": "true", "distribute-cpus-across-numa": "true"}),
                ),
                2,
                "cannot be used together",
            ),
            (json!({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0,99"}), 2, "99 are not there"),
            (json!({"topologyManagerPolicy": "restricted"}), 9, "has 9 NUMA nodes"),
            (json!({"topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "3"}}), 2, "at least 8"),
            (
                json!({"topologyManagerPolicy": "restricted", "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"}}),
                2,
                "how far NUMA node 0",
            ),
            (json!({"memoryManagerPolicy": "Static"}), 2, "reservedMemory: 0 bytes of memory"),
            (
                json!({"memoryManagerPolicy": "Static", "reservedMemory": [{"numaNode": 5, "limits": {"memory": "100Mi"}}]}),
                2,
                "no NUMA node 5",
            ),
        ];
        for (config, nodes, words) in cases {
            let error = configured(config.clone(), nodes).unwrap_err();
            assert!(error.contains(words), "{config}: {error}");
        }
    }

    #[test]
    fn managers_are_made_of_what_is_configured() {
        let none = configured(json!({}), 9).unwrap();
        assert!(none.cpu.is_none() && none.memory.is_none());
        let all = json!({
            "cpuManagerPolicy": "static", "memoryManagerPolicy": "Static", "topologyManagerPolicy": "restricted",
            "topologyManagerScope": "pod", "reservedMemory": [{"numaNode": 1, "limits": {"memory": "100Mi"}}],
        });
        let managers = configured(all, 2).unwrap();
        assert_eq!(managers.cpu.as_ref().unwrap().reserved().to_string(), "0");
        assert_eq!(managers.initial().memory.machine[&1].memory_map["memory"].system_reserved, 100 << 20);
        assert_eq!((managers.policy, managers.scope), (Policy::Restricted, Scope::Pod));
    }
}
