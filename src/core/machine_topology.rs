//! How a machine is built: NUMA nodes with cores, memory and huge pages, as it is read from the kernel once. What the managers
//! of CPUs and memory need of it is derived here.

use std::collections::BTreeMap;

use crate::cpu_manager::{CpuPlace, Topology};
use crate::memory_manager::{Machine, MemoryTable, NodeMemory};
use crate::topology_manager::NumaNodes;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineTopology {
    pub nodes: Vec<MachineNode>,
    /// As many as the kernel knows of, with or without a CPU on line.
    pub sockets: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineNode {
    pub id: u32,
    pub cores: Vec<MachineCore>,
    pub memory_bytes: u64,
    /// Their size in KiB, and how many there are.
    pub huge_pages: BTreeMap<u64, u64>,
    /// To each node, by its number.
    pub distances: Option<Vec<u64>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineCore {
    pub socket: u32,
    /// On line, in ascending order.
    pub threads: Vec<u32>,
    /// A cache above the second level that some cores of the node share.
    pub uncore_cache: Option<u32>,
}

impl MachineTopology {
    pub fn cpus(&self) -> Topology {
        let mut places = BTreeMap::new();
        for node in &self.nodes {
            for core in &node.cores {
                let Some(first) = core.threads.iter().min() else { continue };
                let place = CpuPlace {
                    numa_node: node.id,
                    socket: core.socket,
                    core: *first,
                    uncore_cache: core.uncore_cache.unwrap_or(core.socket),
                };
                places.extend(core.threads.iter().map(|cpu| (*cpu, place)));
            }
        }
        Topology::new(places, self.sockets)
    }

    /// `closest`: distances are to count.
    pub fn numa(&self, closest: bool) -> Result<NumaNodes, String> {
        let nodes = self.nodes.iter().map(|node| node.id).collect();
        if !closest {
            return Ok(NumaNodes { nodes, distances: None });
        }
        let distance = |node: &MachineNode| match &node.distances {
            Some(distances) => Ok((node.id, distances.clone())),
            None => Err(format!("the kernel does not say how far NUMA node {} is from others", node.id)),
        };
        let distances = self.nodes.iter().map(distance).collect::<Result<_, _>>()?;
        Ok(NumaNodes { nodes, distances: Some(distances) })
    }

    /// What there is to give, less what is reserved, by node and resource.
    pub fn memory(&self, reserved: &BTreeMap<u32, BTreeMap<String, u64>>) -> Machine {
        let of_node = |node: &MachineNode| {
            let reserved = |resource: &str| {
                reserved.get(&node.id).and_then(|of_node| of_node.get(resource)).copied().unwrap_or(0)
            };
            let table = |total: u64, usable: u64, system_reserved: u64| {
                let allocatable = usable.saturating_sub(system_reserved);
                MemoryTable { total, system_reserved, allocatable, reserved: 0, free: allocatable }
            };
            let mut tables = BTreeMap::new();
            let mut in_huge_pages = 0;
            for (kib, count) in &node.huge_pages {
                let (resource, total) = (huge_page_resource(*kib), kib * 1024 * count);
                in_huge_pages += total;
                tables.insert(resource.clone(), table(total, total, reserved(&resource)));
            }
            let usable = node.memory_bytes.saturating_sub(in_huge_pages);
            tables.insert("memory".into(), table(node.memory_bytes, usable, reserved("memory")));
            (node.id, NodeMemory { number_of_assignments: 0, memory_map: tables, cells: vec![node.id] })
        };
        self.nodes.iter().map(of_node).collect()
    }
}

/// The resource's name for pages of a size: hugepages-2Mi, hugepages-1Gi.
fn huge_page_resource(kib: u64) -> String {
    let (mut size, mut unit) = (kib, 0);
    while size >= 1024 && size.is_multiple_of(1024) {
        (size, unit) = (size / 1024, unit + 1);
    }
    format!("hugepages-{size}{}", ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].get(unit).unwrap_or(&"Ei"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_take_from_the_memory_beside_them() {
        let node = MachineNode {
            id: 0,
            memory_bytes: 10 << 30,
            huge_pages: [(2048, 512), (1 << 20, 2)].into(),
            ..MachineNode::default()
        };
        let topology = MachineTopology { nodes: vec![node], sockets: 1 };
        let reserved = [(0, [("memory".to_owned(), 1 << 30)].into())].into();
        let machine = topology.memory(&reserved);
        let free: Vec<(&str, u64)> =
            machine[&0].memory_map.iter().map(|(r, t)| (r.as_str(), t.free >> 20)).collect();
        assert_eq!(free, [("hugepages-1Gi", 2048), ("hugepages-2Mi", 1024), ("memory", 6144)]);
    }
}
