//! How the CPUs of a machine lie: in cores, caches, sockets and NUMA nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::cpuset::CpuSet;

/// Where one CPU lies. A core's number is that of its first CPU, so it is one of its own in the whole machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuPlace {
    pub numa_node: u32,
    pub socket: u32,
    pub core: u32,
    /// The outermost cache that some CPUs of a socket share; the socket where there is none.
    pub uncore_cache: u32,
}

/// What CPUs lie in together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    NumaNode,
    Socket,
    Core,
    UncoreCache,
}

impl Part {
    pub fn of(self, place: &CpuPlace) -> u32 {
        match self {
            Self::NumaNode => place.numa_node,
            Self::Socket => place.socket,
            Self::Core => place.core,
            Self::UncoreCache => place.uncore_cache,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    places: BTreeMap<u32, CpuPlace>,
    /// As the machine counts them: one without a CPU on line counts too.
    sockets: usize,
}

impl Topology {
    pub fn new(places: BTreeMap<u32, CpuPlace>, sockets: usize) -> Self {
        Self { places, sockets }
    }

    pub fn cpus(&self) -> CpuSet {
        self.places.keys().copied().collect()
    }

    pub fn place(&self, cpu: u32) -> Option<CpuPlace> {
        self.places.get(&cpu).copied()
    }

    pub fn sockets(&self) -> usize {
        self.sockets
    }

    pub fn numa_nodes(&self) -> BTreeSet<u32> {
        self.ids(Part::NumaNode)
    }

    /// How many there are in each part of a kind, on average.
    pub fn cpus_per(&self, part: Part) -> usize {
        let parts = if part == Part::Socket { self.sockets } else { self.ids(part).len() };
        self.places.len().checked_div(parts).unwrap_or(0)
    }

    pub fn cpus_in(&self, part: Part, id: u32) -> CpuSet {
        self.places.iter().filter(|(_, place)| part.of(place) == id).map(|(cpu, _)| *cpu).collect()
    }

    pub fn cpus_in_any(&self, part: Part, ids: &[u32]) -> CpuSet {
        self.places.iter().filter(|(_, place)| ids.contains(&part.of(place))).map(|(cpu, _)| *cpu).collect()
    }

    pub fn sockets_of(&self, numa_nodes: &[u32]) -> BTreeSet<u32> {
        self.places.values().filter(|p| numa_nodes.contains(&p.numa_node)).map(|p| p.socket).collect()
    }

    /// All CPUs of the cores that these belong to.
    pub fn whole_cores(&self, cpus: &CpuSet) -> CpuSet {
        let cores: BTreeSet<u32> = cpus.iter().filter_map(|cpu| self.place(cpu)).map(|p| p.core).collect();
        self.places.iter().filter(|(_, place)| cores.contains(&place.core)).map(|(cpu, _)| *cpu).collect()
    }

    fn ids(&self, part: Part) -> BTreeSet<u32> {
        self.places.values().map(|place| part.of(place)).collect()
    }
}
