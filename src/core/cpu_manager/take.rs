//! Which CPUs are taken when some are asked for. The choice is the kubelet's to the last CPU, so that either can take over
//! from the other: whole parts of the machine first, then what is left of those that are the fullest.

use std::collections::BTreeMap;

use super::evenly;
use super::topology::{CpuPlace, Part, Topology};
use crate::cpuset::CpuSet;

/// How CPUs are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Manner {
    /// From different cores first (distribute-cpus-across-cores).
    pub across_cores: bool,
    /// Evenly from as many NUMA nodes as are needed (distribute-cpus-across-numa), so many at a time.
    pub across_numa: Option<usize>,
    /// From as few caches as will do (prefer-align-cpus-by-uncorecache).
    pub by_uncore_cache: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
pub struct NotEnough {
    pub requested: usize,
    pub available: usize,
}

/// Takes `count` of the CPUs that are free.
pub fn take(topology: &Topology, free: &CpuSet, count: usize, manner: Manner) -> Result<CpuSet, NotEnough> {
    let taking = Taking::new(topology, free, count, manner);
    if count > taking.free.len() {
        return Err(NotEnough { requested: count, available: free.len() });
    }
    let group = manner.across_numa.filter(|group| *group > 0 && count > 0 && count.is_multiple_of(*group));
    let evenly = group.and_then(|group| evenly::taken(&taking, group));
    Ok(evenly.unwrap_or_else(|| taking.packed()))
}

/// Takes CPUs one part of the machine after the other.
pub(super) struct Taking<'a> {
    pub topology: &'a Topology,
    pub free: BTreeMap<u32, CpuPlace>,
    pub needed: usize,
    manner: Manner,
    /// NUMA nodes hold sockets, or are the same.
    numa_first: bool,
    taken: CpuSet,
}

impl<'a> Taking<'a> {
    fn new(topology: &'a Topology, free: &CpuSet, needed: usize, manner: Manner) -> Self {
        let free = free.iter().filter_map(|cpu| Some((cpu, topology.place(cpu)?))).collect();
        let numa_first = topology.sockets() >= topology.numa_nodes().len();
        Self { topology, free, needed, manner, numa_first, taken: CpuSet::default() }
    }

    /// The same from some of the free CPUs only.
    pub fn among(&self, free: &CpuSet, needed: usize) -> Self {
        Self::new(self.topology, free, needed, self.manner)
    }

    pub fn packed(mut self) -> CpuSet {
        // The larger part of the machine first, whichever that is.
        let parts =
            if self.numa_first { [Part::NumaNode, Part::Socket] } else { [Part::Socket, Part::NumaNode] };
        for part in parts {
            self.whole_parts(part);
        }
        if self.manner.by_uncore_cache && self.manner.across_numa.is_none() {
            self.caches();
        }
        if !self.manner.across_cores {
            self.whole_parts(Part::Core);
        }
        self.single_cpus();
        self.taken
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.needed = self.needed.saturating_sub(cpus.len());
        self.taken = self.taken.union(cpus);
        self.free.retain(|cpu, _| !cpus.contains(*cpu));
    }

    fn whole_parts(&mut self, part: Part) {
        let free: Vec<u32> = self.ordered(part).into_iter().filter(|id| self.is_free(part, *id)).collect();
        for id in free {
            let cpus = self.topology.cpus_in(part, id);
            if self.needed > 0 && self.needed >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    /// Whole caches as long as one is needed, else a cache that can give all that is needed.
    fn caches(&mut self) {
        for cache in self.ordered(Part::UncoreCache) {
            if self.needed >= self.topology.cpus_per(Part::UncoreCache) {
                self.whole_parts(Part::UncoreCache);
            }
            if self.needed == 0 {
                return;
            }
            self.part_of_cache(cache);
        }
    }

    fn part_of_cache(&mut self, cache: u32) {
        let per_core = self.topology.cpus_per(Part::Core).max(1);
        let cores_needed = self.needed.div_ceil(per_core);
        let mut cores: Vec<u32> =
            self.free.values().filter(|place| place.uncore_cache == cache).map(|place| place.core).collect();
        cores.sort_unstable();
        cores.dedup();
        cores.truncate(cores_needed);
        let mut cpus: Vec<u32> =
            self.free.iter().filter(|(_, place)| cores.contains(&place.core)).map(|(cpu, _)| *cpu).collect();
        // One thread of the last core is not needed.
        if !self.needed.is_multiple_of(2) && per_core > 1 && cpus.len() > self.needed {
            cpus.pop();
        }
        if cpus.len() == self.needed {
            self.take(&cpus.into_iter().collect());
        }
    }

    fn single_cpus(&mut self) {
        let mut cpus = if self.manner.across_cores {
            self.cpus_within(Part::Socket, self.ordered(Part::Socket))
        } else {
            self.cpus_within(Part::Core, self.ordered(Part::Core))
        };
        cpus.truncate(self.needed);
        self.take(&cpus.into_iter().collect());
    }

    fn cpus_within(&self, part: Part, ids: Vec<u32>) -> Vec<u32> {
        let cpus = |id| self.free.iter().filter(move |(_, place)| part.of(place) == id).map(|(cpu, _)| *cpu);
        ids.into_iter().flat_map(cpus).collect()
    }

    /// Sockets and cores are taken to be of one size, as the kubelet takes them.
    fn is_free(&self, part: Part, id: u32) -> bool {
        let all = match part {
            Part::Socket | Part::Core => self.topology.cpus_per(part),
            Part::NumaNode | Part::UncoreCache => self.topology.cpus_in(part, id).len(),
        };
        self.free_in(part, id) == all
    }

    pub fn free_in(&self, part: Part, id: u32) -> usize {
        self.free.values().filter(|place| part.of(place) == id).count()
    }

    /// All parts of a kind in which a CPU is free, in the order in which they are taken from.
    pub fn ordered(&self, part: Part) -> Vec<u32> {
        let outer = match (part, self.numa_first) {
            (Part::NumaNode, true) | (Part::Socket, false) => return self.fullest_first(part, |_| true),
            (Part::NumaNode, false) | (Part::Core, true) => Part::Socket,
            (Part::Socket, true) | (Part::Core, false) | (Part::UncoreCache, _) => Part::NumaNode,
        };
        let inside = |id| self.fullest_first(part, move |place| outer.of(place) == id);
        self.ordered(outer).into_iter().flat_map(inside).collect()
    }

    fn fullest_first(&self, part: Part, inside: impl Fn(&CpuPlace) -> bool) -> Vec<u32> {
        let mut ids: Vec<u32> = self.free.values().filter(|p| inside(p)).map(|p| part.of(p)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.sort_by_cached_key(|id| (self.free_in(part, *id), *id));
        ids
    }
}
