//! How the machine is built, as /sys says it. What is missing there is taken to be one node.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use keelson_core::cpuset::CpuSet;
use keelson_core::machine_topology::{MachineCore, MachineNode, MachineTopology};

use super::{Roots, kilobytes, word};
use crate::path_error::PathError;

pub fn topology(roots: &Roots) -> Result<MachineTopology, PathError> {
    let system = roots.sys.join("devices/system");
    let mut nodes: Vec<MachineNode> = numbered(&system.join("node"), "node")
        .into_iter()
        .map(|id| {
            let dir = system.join(format!("node/node{id}"));
            MachineNode {
                id,
                cores: cores(&system, &numbered(&dir, "cpu")),
                memory_bytes: node_memory(&dir, id),
                huge_pages: huge_pages(&dir.join("hugepages")),
                distances: distances(&dir),
            }
        })
        .collect();
    if nodes.is_empty() {
        nodes = by_socket(roots, &system)?;
    }
    let sockets: BTreeSet<u32> = nodes.iter().flat_map(|n| &n.cores).map(|core| core.socket).collect();
    Ok(MachineTopology { nodes, sockets: sockets.len().max(1) })
}

/// The CPUs that run at this moment. None where the kernel does not say.
pub fn online_cpus(roots: &Roots) -> Option<CpuSet> {
    word(&roots.sys.join("devices/system/cpu/online")).parse().ok().filter(|cpus: &CpuSet| !cpus.is_empty())
}

/// A kernel without NUMA: the kubelet takes each socket for a node.
fn by_socket(roots: &Roots, system: &Path) -> Result<Vec<MachineNode>, PathError> {
    let all = cores(system, &numbered(&system.join("cpu"), "cpu"));
    let memory = super::read(roots)?.memory_bytes;
    let mut nodes: BTreeMap<u32, MachineNode> = BTreeMap::new();
    for core in all {
        let node = nodes
            .entry(core.socket)
            .or_insert_with(|| MachineNode { id: core.socket, ..MachineNode::default() });
        node.cores.push(core);
    }
    if let Some(first) = nodes.values_mut().next() {
        first.memory_bytes = memory;
    }
    Ok(nodes.into_values().collect())
}

/// The numbers of directories like cpu7.
fn numbered(dir: &Path, prefix: &str) -> Vec<u32> {
    let names =
        fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok());
    let mut found: Vec<u32> = names.filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
    found.sort_unstable();
    found
}

fn cores(system: &Path, cpus: &[u32]) -> Vec<MachineCore> {
    let mut found: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for cpu in cpus {
        let dir = system.join(format!("cpu/cpu{cpu}"));
        // The first one cannot be taken off line and has no such file.
        if word(&dir.join("online")) == "0" {
            continue;
        }
        let id = |file: &str| word(&dir.join("topology").join(file)).parse::<u32>().ok();
        if let (Some(core), Some(socket)) = (id("core_id"), id("physical_package_id")) {
            found.entry((socket, core)).or_default().push(*cpu);
        }
    }
    let count = found.len();
    let core = |((socket, _), threads): ((u32, u32), Vec<u32>)| {
        let uncore_cache = threads.first().and_then(|cpu| uncore_cache(system, *cpu, count * threads.len()));
        MachineCore { socket, threads, uncore_cache }
    };
    found.into_iter().map(core).collect()
}

/// The cache above the second level that a CPU shares with some of its node's, but not with all.
fn uncore_cache(system: &Path, cpu: u32, on_node: usize) -> Option<u32> {
    let dir = system.join(format!("cpu/cpu{cpu}/cache"));
    let caches = numbered(&dir, "index").into_iter().map(|n| dir.join(format!("index{n}")));
    let mut shared = caches.filter(|cache| {
        let level: u32 = word(&cache.join("level")).parse().unwrap_or(0);
        let cpus: CpuSet = word(&cache.join("shared_cpu_list")).parse().unwrap_or_default();
        level > 2 && cpus.len() != on_node
    });
    shared.find_map(|cache| word(&cache.join("id")).parse().ok())
}

fn node_memory(dir: &Path, id: u32) -> u64 {
    let text = fs::read_to_string(dir.join("meminfo")).unwrap_or_default();
    let text: String = text
        .lines()
        .filter_map(|l| l.strip_prefix(&format!("Node {id} ")))
        .map(|l| format!("{l}\n"))
        .collect();
    kilobytes(&text, "MemTotal").unwrap_or(0)
}

fn huge_pages(dir: &Path) -> BTreeMap<u64, u64> {
    let sizes = fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|entry| {
        let size =
            entry.file_name().to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        Some((size, word(&entry.path().join("nr_hugepages")).parse().unwrap_or(0)))
    });
    sizes.collect()
}

fn distances(dir: &Path) -> Option<Vec<u64>> {
    let text = fs::read_to_string(dir.join("distance")).ok()?;
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, file: &str, text: &str) {
        let path = root.join("sys/devices/system").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Two sockets with a node each, two cores with two threads in each; the last CPU is off line.
    #[test]
    fn nodes_cores_and_what_is_off_line_are_read() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        for cpu in 0..8u32 {
            let (node, core) = (cpu % 4 / 2, cpu % 2);
            put(at, &format!("node/node{node}/cpu{cpu}/here"), "");
            put(at, &format!("cpu/cpu{cpu}/topology/core_id"), &format!("{core}\n"));
            put(at, &format!("cpu/cpu{cpu}/topology/physical_package_id"), &format!("{node}\n"));
            put(at, &format!("cpu/cpu{cpu}/cache/index2/level"), "2\n");
            put(at, &format!("cpu/cpu{cpu}/cache/index3/level"), "3\n");
            put(at, &format!("cpu/cpu{cpu}/cache/index3/id"), &format!("{}\n", cpu % 4));
            let beside =
                if cpu % 4 == 3 { "3\n".to_owned() } else { format!("{},{}\n", cpu % 4, cpu % 4 + 4) };
            put(at, &format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), &beside);
            put(at, &format!("cpu/cpu{cpu}/online"), if cpu == 7 { "0\n" } else { "1\n" });
        }
        put(at, "node/node0/meminfo", "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 7 kB\n");
        put(at, "node/node0/distance", "10 21\n");
        put(at, "node/node0/hugepages/hugepages-2048kB/nr_hugepages", "4\n");
        let roots = Roots { proc: at.join("proc"), sys: at.join("sys"), files: at.into() };
        let found = topology(&roots).unwrap();
        assert_eq!(found.sockets, 2);
        let core = |socket, threads: &[u32], cache| MachineCore {
            socket,
            threads: threads.into(),
            uncore_cache: Some(cache),
        };
        assert_eq!(found.nodes[0].cores, [core(0, &[0, 4], 0), core(0, &[1, 5], 1)]);
        assert_eq!(found.nodes[1].cores, [core(1, &[2, 6], 2), core(1, &[3], 3)]);
        assert_eq!(found.nodes[0].memory_bytes, 1 << 20);
        assert_eq!(found.nodes[0].distances, Some(vec![10, 21]));
        assert_eq!(found.nodes[0].huge_pages, [(2048, 4)].into());
        assert_eq!((found.nodes[1].memory_bytes, found.nodes[1].distances.clone()), (0, None));
    }

    #[test]
    fn this_machine_has_a_topology() {
        let found = topology(&Roots::default()).unwrap();
        let cpus = found.cpus().cpus();
        assert_eq!(cpus.len(), super::super::read(&Roots::default()).unwrap().cpus as usize, "{found:?}");
    }
}
