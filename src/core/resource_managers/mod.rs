//! The managers of CPUs and memory together, as the topology manager has them decide about a pod: where its resources should
//! come from first, then who gives what. A pod that is refused takes nothing.

mod configure;
#[cfg(test)]
mod differential;
mod refusal;
#[cfg(test)]
mod tests;

pub use configure::KeptFromPods;
pub use refusal::Refusal;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::cpu_manager::{self, Assignments, StaticPolicy};
use crate::cpuset::CpuSet;
use crate::ids::PodUid;
use crate::memory_manager::{MemoryPolicy, MemoryState};
use crate::topology_manager::{Hint, NumaMask, NumaNodes, Policy, Wish, merge};

/// What is aligned: the resources of each container, or those of a pod together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    Container,
    Pod,
}

/// As they are configured. A manager that is none has no opinion and gives nothing.
#[derive(Debug, Clone, Default)]
pub struct ResourceManagers {
    pub policy: Policy,
    pub scope: Scope,
    pub numa: NumaNodes,
    pub cpu: Option<StaticPolicy>,
    pub memory: Option<MemoryPolicy>,
}

/// Who has what.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    pub cpu: Assignments,
    pub memory: MemoryState,
    /// Containers whose pods were not asked about yet, because what they had was lost, and where their memory was seen to come
    /// from.
    found: BTreeMap<PodUid, BTreeMap<String, NumaMask>>,
}

/// What one container is bound to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Binding {
    /// None: wherever the kernel likes.
    pub cpus: Option<CpuSet>,
    /// NUMA nodes that memory comes from.
    pub memory_nodes: Option<CpuSet>,
}

/// A container that runs, and what the runtime says that it is held to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub pod: PodUid,
    pub container: String,
    pub cpus: CpuSet,
    pub memory_nodes: CpuSet,
}

impl Held {
    pub fn new(cpu: Assignments, memory: MemoryState) -> Self {
        Self { cpu, memory, found: BTreeMap::new() }
    }
}

impl ResourceManagers {
    /// With nothing given to anybody.
    pub fn initial(&self) -> Held {
        Held::new(
            self.cpu.as_ref().map(StaticPolicy::initial).unwrap_or_default(),
            self.memory.as_ref().map(MemoryPolicy::initial).unwrap_or_default(),
        )
    }

    /// Gives a pod what it asks for, all of it or nothing. One that has it already keeps it.
    pub fn admit(&self, held: &mut Held, pod: &Pod, uid: &PodUid) -> Result<(), Refusal> {
        let mut after = held.clone();
        // Taken for its own when it was only seen to run there.
        let spec = || pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
        for container in spec().filter(|c| cpu_manager::exclusive_cpus(pod, c) == 0) {
            after.cpu.release(uid, &container.name);
        }
        let found = after.found.remove(uid);
        let whole = match (self.policy, self.scope) {
            // What runs stays where it is, whether anybody would put it there again or not.
            _ if found.is_some() => Some(NO_HINT),
            (Policy::None, _) => Some(NO_HINT),
            (_, Scope::Pod) => Some(self.align(self.pod_wishes(&after, pod, uid))?),
            (_, Scope::Container) => None,
        };
        for container in spec() {
            let seen = found.as_ref().and_then(|f| f.get(&container.name)).filter(|nodes| !nodes.is_empty());
            let hint = match whole {
                Some(hint) => Hint { affinity: seen.copied().or(hint.affinity), ..hint },
                None => self.align(self.wishes(&after, pod, uid, container))?,
            };
            self.allocate(&mut after, pod, uid, container, hint)?;
        }
        *held = after;
        Ok(())
    }

    /// What containers that run must have been given, where nobody has written it down: sets of CPUs that are nobody else's and
    /// hold none that is reserved. Whose they are not is found out when their pods are admitted.
    pub fn rebuilt(&self, running: &[Seen]) -> Held {
        let mut held = self.initial();
        for seen in running {
            let of_pod = held.found.entry(seen.pod.clone()).or_default();
            of_pod.insert(seen.container.clone(), seen.memory_nodes.iter().collect());
        }
        let Some(policy) = &self.cpu else { return held };
        let allocatable = policy.allocatable();
        let shared = |seen: &Seen| seen.cpus.is_empty() || !seen.cpus.is_subset(&allocatable);
        let overlaps = |a: &Seen, b: &Seen| a.cpus != b.cpus && !a.cpus.intersection(&b.cpus).is_empty();
        for seen in running.iter().filter(|seen| !shared(seen)) {
            let others = || running.iter().filter(|other| other.pod != seen.pod);
            let alone = !others().any(|other| other.cpus == seen.cpus || overlaps(seen, other));
            if alone {
                held.cpu.shared = held.cpu.shared.difference(&seen.cpus);
                let of_pod = held.cpu.exclusive.entry(seen.pod.clone()).or_default();
                of_pod.insert(seen.container.clone(), seen.cpus.clone());
            }
        }
        held
    }

    /// What is wrong with what was read back.
    pub fn check(&self, held: &Held) -> Result<(), String> {
        if let Some(policy) = &self.cpu {
            policy.check(&held.cpu)?;
        }
        self.memory.as_ref().map_or(Ok(()), |policy| policy.check(&held.memory))
    }

    /// Nothing of a pod runs any more.
    pub fn release(&self, held: &mut Held, uid: &PodUid) {
        held.found.remove(uid);
        let names = |containers: Option<Vec<String>>| containers.unwrap_or_default();
        for name in names(held.cpu.exclusive.get(uid).map(|c| c.keys().cloned().collect())) {
            held.cpu.release(uid, &name);
        }
        for name in names(held.memory.blocks.get(uid).map(|c| c.keys().cloned().collect())) {
            held.memory.release(uid, &name);
        }
    }

    /// What a container is to run on now. Those without CPUs of their own share what is left.
    pub fn binding(&self, held: &Held, uid: &PodUid, container: &str) -> Binding {
        let own = held.cpu.of(uid, container);
        let cpus = self.cpu.as_ref().map(|_| own.unwrap_or(&held.cpu.shared).clone());
        let nodes =
            held.memory.of(uid, container).into_iter().flatten().flat_map(|b| b.numa_affinity.clone());
        let nodes: CpuSet = nodes.collect();
        Binding { cpus, memory_nodes: Some(nodes).filter(|nodes| self.memory.is_some() && !nodes.is_empty()) }
    }

    fn align(&self, wishes: Vec<Wish>) -> Result<Hint, Refusal> {
        let merged = merge(self.policy, &self.numa, &wishes);
        if merged.admitted { Ok(merged.hint) } else { Err(Refusal::Topology) }
    }

    fn wishes(&self, held: &Held, pod: &Pod, uid: &PodUid, container: &Container) -> Vec<Wish> {
        let cpu = self.cpu.iter().map(|policy| policy.wish(&held.cpu, pod, uid, container));
        let memory = self.memory.iter().flat_map(|policy| policy.wishes(&held.memory, pod, uid, container));
        cpu.chain(memory).collect()
    }

    fn pod_wishes(&self, held: &Held, pod: &Pod, uid: &PodUid) -> Vec<Wish> {
        let cpu = self.cpu.iter().map(|policy| policy.pod_wish(&held.cpu, pod, uid));
        let memory = self.memory.iter().flat_map(|policy| policy.pod_wishes(&held.memory, pod, uid));
        cpu.chain(memory).collect()
    }

    fn allocate(
        &self,
        held: &mut Held,
        pod: &Pod,
        uid: &PodUid,
        container: &Container,
        hint: Hint,
    ) -> Result<(), Refusal> {
        if let Some(policy) = &self.cpu {
            policy.allocate(&mut held.cpu, pod, uid, container, hint.affinity)?;
        }
        if let Some(policy) = &self.memory {
            policy.allocate(&mut held.memory, pod, uid, container, hint)?;
        }
        Ok(())
    }
}

const NO_HINT: Hint = Hint { affinity: None, preferred: false };
