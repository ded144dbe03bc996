//! What the nodes of a machine have left, and who has what of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::PodUid;
use crate::topology_manager::NumaMask;

/// One resource of one node, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryTable {
    pub total: u64,
    pub system_reserved: u64,
    pub allocatable: u64,
    pub reserved: u64,
    pub free: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMemory {
    pub number_of_assignments: u64,
    /// By resource: memory, and huge pages of each size.
    pub memory_map: BTreeMap<String, MemoryTable>,
    /// The nodes that this one gives memory together with.
    pub cells: Vec<u32>,
}

pub type Machine = BTreeMap<u32, NodeMemory>;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    pub numa_affinity: Vec<u32>,
    #[serde(rename = "type")]
    pub resource: String,
    pub size: u64,
}

impl Block {
    pub fn mask(&self) -> NumaMask {
        self.numa_affinity.iter().copied().collect()
    }
}

/// Bytes, by the nodes that they come from and their resource.
type Reusable = BTreeMap<(NumaMask, String), u64>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryState {
    pub machine: Machine,
    pub blocks: BTreeMap<PodUid, BTreeMap<String, Vec<Block>>>,
    /// What init containers of the pod that was placed last leave to those after them.
    pub(super) reusable: Option<(PodUid, Reusable)>,
}

impl MemoryState {
    pub fn of(&self, pod: &PodUid, container: &str) -> Option<&Vec<Block>> {
        self.blocks.get(pod)?.get(container)
    }

    pub(super) fn reusable(&self, pod: &PodUid, mask: NumaMask, resource: &str) -> u64 {
        let of_pod = self.reusable.as_ref().filter(|(uid, _)| uid == pod);
        of_pod.and_then(|(_, sizes)| sizes.get(&(mask, resource.to_owned()))).copied().unwrap_or(0)
    }

    /// What a container had is free again.
    pub fn release(&mut self, pod: &PodUid, container: &str) {
        let Some(of_pod) = self.blocks.get_mut(pod) else { return };
        let Some(blocks) = of_pod.remove(container) else { return };
        if of_pod.is_empty() {
            self.blocks.remove(pod);
        }
        for block in &blocks {
            give_back(&mut self.machine, block);
        }
    }
}

/// From the first node as much as it has, then from the next.
pub(super) fn take(machine: &mut Machine, block: &Block, mut size: u64) {
    for id in &block.numa_affinity {
        let Some(node) = machine.get_mut(id) else { continue };
        node.number_of_assignments += 1;
        node.cells.clone_from(&block.numa_affinity);
        let Some(table) = node.memory_map.get_mut(&block.resource) else { continue };
        let taken = size.min(table.free);
        table.reserved += taken;
        table.free -= taken;
        size -= taken;
    }
}

fn give_back(machine: &mut Machine, block: &Block) {
    let mut size = block.size;
    for id in &block.numa_affinity {
        let Some(node) = machine.get_mut(id) else { continue };
        node.number_of_assignments = node.number_of_assignments.saturating_sub(1);
        if node.number_of_assignments == 0 {
            node.cells = vec![*id];
        }
        let Some(table) = node.memory_map.get_mut(&block.resource) else { continue };
        let given = size.min(table.reserved);
        table.free += given;
        table.reserved -= given;
        size -= given;
    }
}
