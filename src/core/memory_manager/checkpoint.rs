//! The file memory_manager_state, in the kubelet's format with its checksum.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::state::{Block, Machine, MemoryState, MemoryTable, NodeMemory};
use crate::cpu_manager::checkpoint::BadCheckpoint;
use crate::hash::fnv1a_32;
use crate::ids::PodUid;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    policy_name: String,
    machine_state: Option<Machine>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, Vec<Block>>>,
    checksum: u64,
}

pub fn encode(policy: &str, state: &MemoryState) -> String {
    let mut file = File {
        policy_name: policy.into(),
        machine_state: Some(state.machine.clone()),
        entries: state.blocks.iter().map(|(uid, c)| (uid.to_string(), c.clone())).collect(),
        checksum: 0,
    };
    file.checksum = checksum(&file);
    serde_json::to_string(&file).unwrap_or_default()
}

pub fn decode(text: &str, policy: &str) -> Result<MemoryState, BadCheckpoint> {
    let file: File = serde_json::from_str(text)?;
    let computed = checksum(&file);
    if file.checksum != 0 && file.checksum != computed {
        return Err(BadCheckpoint::Corrupt { found: file.checksum, computed });
    }
    if file.policy_name != policy {
        return Err(BadCheckpoint::OtherPolicy { found: file.policy_name, wanted: policy.into() });
    }
    let mut state = MemoryState { machine: file.machine_state.unwrap_or_default(), ..MemoryState::default() };
    for (uid, containers) in file.entries {
        let uid = PodUid::try_from(uid.clone()).map_err(|_| BadCheckpoint::Uid(uid))?;
        state.blocks.insert(uid, containers);
    }
    Ok(state)
}

/// Of the structure as Go shows it.
fn checksum(file: &File) -> u64 {
    let machine =
        file.machine_state.iter().flatten().map(|(id, node)| format!("{id}:<*>{}", shown_node(node)));
    let entries = file.entries.iter().map(|(pod, containers)| {
        let containers = containers.iter().map(|(name, blocks)| format!("{name}:{}", shown_blocks(blocks)));
        format!("{pod}:map[{}]", words(containers))
    });
    let shown = format!(
        "(*state.MemoryManagerCheckpoint){{PolicyName:(string){} MachineState:(state.NUMANodeMap)map[{}] \
         Entries:(state.ContainerMemoryAssignments)map[{}] Checksum:(checksum.Checksum)0}}",
        file.policy_name,
        words(machine),
        words(entries)
    );
    fnv1a_32(shown.as_bytes()).into()
}

fn words(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(" ")
}

fn shown_node(node: &NodeMemory) -> String {
    let table = |t: &MemoryTable| {
        format!(
            "{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} Reserved:(uint64){} Free:(uint64){}}}",
            t.total, t.system_reserved, t.allocatable, t.reserved, t.free
        )
    };
    format!(
        "{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[{}] Cells:([]int)[{}]}}",
        node.number_of_assignments,
        words(node.memory_map.iter().map(|(resource, t)| format!("{resource}:<*>{}", table(t)))),
        words(node.cells.iter().map(u32::to_string))
    )
}

fn shown_blocks(blocks: &[Block]) -> String {
    let block = |b: &Block| {
        let nodes = words(b.numa_affinity.iter().map(u32::to_string));
        format!(
            "{{NUMAAffinity:([]int)[{nodes}] Type:(v1.ResourceName){} Size:(uint64){}}}",
            b.resource, b.size
        )
    };
    format!("[{}]", words(blocks.iter().map(block)))
}
