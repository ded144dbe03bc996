//! The static policy: containers of Guaranteed pods that ask for whole CPUs get some of their own, all others share the rest.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod};

use super::take::{Manner, NotEnough, take};
use super::topology::{Part, Topology};
use crate::cpuset::CpuSet;
use crate::ids::PodUid;
use crate::qos::{QosClass, qos_of};
use crate::resources::amount;
use crate::topology_manager::{Hint, NumaMask, Wish};

/// cpuManagerPolicyOptions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    pub full_pcpus_only: bool,
    pub across_numa: bool,
    pub align_by_socket: bool,
    pub across_cores: bool,
    pub strict_reservation: bool,
    pub by_uncore_cache: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPolicy {
    topology: Topology,
    /// Nobody has these for their own.
    reserved: CpuSet,
    options: Options,
}

/// Who has which CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Assignments {
    /// What all others run on.
    pub shared: CpuSet,
    pub exclusive: BTreeMap<PodUid, BTreeMap<String, CpuSet>>,
}

/// Why a container cannot have CPUs of its own. The reason is what the pod's status says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    NoWholeCores { requested: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    TooFewCores { available: usize, requested: usize, per_core: usize },
    #[error(transparent)]
    NotEnough(#[from] NotEnough),
}

impl Refusal {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoWholeCores { .. } | Self::TooFewCores { .. } => "SMTAlignmentError",
            Self::NotEnough(_) => "UnexpectedAdmissionError",
        }
    }
}

impl StaticPolicy {
    /// `reserved_count` CPUs are kept for the system: those of `reserved`, or the first cores where that is empty.
    pub fn new(
        topology: Topology,
        reserved: CpuSet,
        reserved_count: usize,
        options: Options,
    ) -> Result<Self, String> {
        if options.align_by_socket && topology.sockets() > topology.numa_nodes().len() {
            return Err(
                "align-by-socket needs sockets that hold NUMA nodes, and here NUMA nodes hold sockets".into(),
            );
        }
        let mut policy = Self { topology, reserved: CpuSet::default(), options };
        policy.reserved = match reserved.is_empty() {
            true => policy.take(&policy.topology.cpus(), reserved_count).unwrap_or_default(),
            false => reserved,
        };
        if policy.reserved.len() != reserved_count {
            return Err(format!(
                "unable to reserve the required amount of CPUs (size of {} did not equal {reserved_count})",
                policy.reserved
            ));
        }
        let unknown = policy.reserved.difference(&policy.topology.cpus());
        if !unknown.is_empty() {
            return Err(format!("the reserved CPUs {unknown} are not there"));
        }
        Ok(policy)
    }

    /// With nothing given to anybody.
    pub fn initial(&self) -> Assignments {
        Assignments { shared: self.all(), exclusive: BTreeMap::new() }
    }

    fn all(&self) -> CpuSet {
        let all = self.topology.cpus();
        if self.options.strict_reservation { all.difference(&self.reserved) } else { all }
    }

    /// What is wrong with assignments that were read back.
    pub fn check(&self, assignments: &Assignments) -> Result<(), String> {
        let Assignments { shared, exclusive } = assignments;
        let reserved = self.reserved.intersection(shared);
        if self.options.strict_reservation && !reserved.is_empty() {
            return Err(format!(
                "some of strictly reserved cpus: {reserved} are present in defaultCpuSet: {shared}"
            ));
        }
        if !self.options.strict_reservation && reserved != self.reserved {
            return Err(format!(
                "not all reserved cpus: {} are present in defaultCpuSet: {shared}",
                self.reserved
            ));
        }
        let mut known = shared.clone();
        for (pod, containers) in exclusive {
            for (container, cpus) in containers {
                if !cpus.intersection(shared).is_empty() {
                    return Err(format!(
                        "pod: {pod}, container: {container} cpuset: {cpus} overlaps with default cpuset {shared}"
                    ));
                }
                known = known.union(cpus);
            }
        }
        if known != self.all() {
            return Err(format!(
                "current set of available CPUs {} doesn't match with CPUs in state {known}",
                self.all()
            ));
        }
        Ok(())
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    pub fn reserved(&self) -> &CpuSet {
        &self.reserved
    }

    /// What may be given to somebody at all.
    pub fn allocatable(&self) -> CpuSet {
        self.topology.cpus().difference(&self.reserved)
    }

    /// Gives a container its CPUs, once. `affinity` is where the topology manager wants them from.
    pub fn allocate(
        &self,
        assignments: &mut Assignments,
        pod: &Pod,
        uid: &PodUid,
        container: &Container,
        affinity: Option<NumaMask>,
    ) -> Result<(), Refusal> {
        let wanted = exclusive_cpus(pod, container);
        if wanted == 0 || has_pod_level_resources(pod) {
            return Ok(());
        }
        self.check_whole_cores(assignments, wanted)?;
        if assignments.of(uid, &container.name).is_some() {
            return Ok(());
        }
        let reusable = reusable(assignments, pod, uid, &container.name);
        let cpus = self.choose(assignments, wanted, affinity, &reusable)?;
        assignments.shared = assignments.shared.difference(&cpus);
        assignments.exclusive.entry(uid.clone()).or_default().insert(container.name.clone(), cpus);
        Ok(())
    }

    fn check_whole_cores(&self, assignments: &Assignments, requested: usize) -> Result<(), Refusal> {
        let per_core = self.topology.cpus_per(Part::Core).max(1);
        if !self.options.full_pcpus_only {
            return Ok(());
        }
        if !requested.is_multiple_of(per_core) {
            return Err(Refusal::NoWholeCores { requested, per_core });
        }
        // A core of which one thread is reserved cannot be given whole.
        let reserved = self.topology.whole_cores(&self.reserved);
        let available = assignments.shared.difference(&reserved).len();
        if requested > available {
            return Err(Refusal::TooFewCores { available, requested, per_core });
        }
        Ok(())
    }

    fn choose(
        &self,
        assignments: &Assignments,
        wanted: usize,
        affinity: Option<NumaMask>,
        reusable: &CpuSet,
    ) -> Result<CpuSet, Refusal> {
        let free = assignments.shared.difference(&self.reserved).union(reusable);
        let near = affinity.map(|mask| free.intersection(&self.near(mask))).unwrap_or_default();
        let from_near = self.take(&near, wanted.min(near.len()))?;
        let rest = self.take(&free.difference(&from_near), wanted - from_near.len())?;
        Ok(from_near.union(&rest))
    }

    /// The CPUs of some NUMA nodes, or of their sockets (align-by-socket).
    fn near(&self, mask: NumaMask) -> CpuSet {
        let nodes: Vec<u32> = mask.nodes().collect();
        if !self.options.align_by_socket {
            return self.topology.cpus_in_any(Part::NumaNode, &nodes);
        }
        let sockets: Vec<u32> = self.topology.sockets_of(&nodes).into_iter().collect();
        self.topology.cpus_in_any(Part::Socket, &sockets)
    }

    fn take(&self, free: &CpuSet, count: usize) -> Result<CpuSet, NotEnough> {
        let per_core = self.topology.cpus_per(Part::Core).max(1);
        let group = if self.options.full_pcpus_only { per_core } else { 1 };
        let manner = Manner {
            across_cores: self.options.across_cores,
            across_numa: self.options.across_numa.then_some(group),
            by_uncore_cache: self.options.by_uncore_cache,
        };
        take(&self.topology, free, count, manner)
    }

    /// Where a container's CPUs could come from.
    pub fn wish(&self, assignments: &Assignments, pod: &Pod, uid: &PodUid, container: &Container) -> Wish {
        let wanted = exclusive_cpus(pod, container);
        if wanted == 0 || has_pod_level_resources(pod) {
            return Wish::Anywhere;
        }
        Wish::OneOf(match assignments.of(uid, &container.name) {
            Some(cpus) if cpus.len() != wanted => vec![],
            Some(cpus) => self.hints(cpus, &CpuSet::default(), wanted),
            None => {
                let reusable = reusable(assignments, pod, uid, &container.name);
                self.hints(&assignments.shared.difference(&self.reserved), &reusable, wanted)
            }
        })
    }

    /// Where all CPUs of a pod could come from.
    pub fn pod_wish(&self, assignments: &Assignments, pod: &Pod, uid: &PodUid) -> Wish {
        let wanted = exclusive_cpus_of_pod(pod);
        if wanted == 0 || has_pod_level_resources(pod) {
            return Wish::Anywhere;
        }
        let mut assigned = CpuSet::default();
        for container in all_containers(pod) {
            let Some(cpus) = assignments.of(uid, &container.name) else { continue };
            if cpus.len() != exclusive_cpus(pod, container) {
                return Wish::OneOf(vec![]);
            }
            assigned = assigned.union(cpus);
        }
        if assigned.len() == wanted {
            return Wish::OneOf(self.hints(&assigned, &CpuSet::default(), wanted));
        }
        Wish::OneOf(self.hints(&assignments.shared.difference(&self.reserved), &assigned, wanted))
    }

    fn hints(&self, available: &CpuSet, reusable: &CpuSet, wanted: usize) -> Vec<Hint> {
        let nodes: Vec<u32> = self.topology.numa_nodes().into_iter().collect();
        let node_of = |cpu: u32| self.topology.place(cpu).map_or(u32::MAX, |place| place.numa_node);
        let (mut fewest, mut hints) = (nodes.len(), vec![]);
        for mask in NumaMask::all_of(&nodes) {
            let members: Vec<u32> = mask.nodes().collect();
            if self.topology.cpus_in_any(Part::NumaNode, &members).len() >= wanted {
                fewest = fewest.min(mask.len());
            }
            let here = |cpus: &CpuSet| cpus.iter().filter(|cpu| mask.contains(node_of(*cpu))).count();
            if here(reusable) == reusable.len() && here(reusable) + here(available) >= wanted {
                hints.push(mask);
            }
        }
        let preferred = |mask: NumaMask| {
            mask.len() == fewest || (self.options.align_by_socket && self.on_fewest_sockets(mask, fewest))
        };
        hints.into_iter().map(|mask| Hint { affinity: Some(mask), preferred: preferred(mask) }).collect()
    }

    fn on_fewest_sockets(&self, mask: NumaMask, fewest_nodes: usize) -> bool {
        let per_socket = self.topology.numa_nodes().len().checked_div(self.topology.sockets()).unwrap_or(0);
        let nodes: Vec<u32> = mask.nodes().collect();
        per_socket > 0 && self.topology.sockets_of(&nodes).len() == fewest_nodes.div_ceil(per_socket)
    }
}

impl Assignments {
    pub fn of(&self, pod: &PodUid, container: &str) -> Option<&CpuSet> {
        self.exclusive.get(pod)?.get(container)
    }

    /// What a container had goes back to all, but for what others of its pod have too.
    pub fn release(&mut self, pod: &PodUid, container: &str) {
        let Some(of_pod) = self.exclusive.get_mut(pod) else { return };
        let Some(mut given) = of_pod.remove(container) else { return };
        for other in of_pod.values() {
            given = given.difference(other);
        }
        if of_pod.is_empty() {
            self.exclusive.remove(pod);
        }
        self.shared = self.shared.union(&given);
    }
}

/// What init containers of the pod have had, and nobody after them has now.
fn reusable(assignments: &Assignments, pod: &Pod, uid: &PodUid, container: &str) -> CpuSet {
    let mut reusable = CpuSet::default();
    let sidecars: BTreeSet<&str> = restartable(pod).collect();
    let inits: BTreeSet<&str> =
        pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten()).map(|c| c.name.as_str()).collect();
    for earlier in all_containers(pod).take_while(|c| c.name != container) {
        let Some(cpus) = assignments.of(uid, &earlier.name) else { continue };
        let passes = inits.contains(earlier.name.as_str()) && !sidecars.contains(earlier.name.as_str());
        reusable = if passes { reusable.union(cpus) } else { reusable.difference(cpus) };
    }
    reusable
}

fn restartable(pod: &Pod) -> impl Iterator<Item = &str> {
    let inits = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
    inits.filter(|c| c.restart_policy.as_deref() == Some("Always")).map(|c| c.name.as_str())
}

fn all_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers))
}

/// How many CPUs of its own a container is to have.
pub fn exclusive_cpus(pod: &Pod, container: &Container) -> usize {
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let milli = amount(requests, "cpu").milli();
    let whole = milli > 0 && milli % 1000 == 0 && qos_of(pod) == QosClass::Guaranteed;
    if whole { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// The most that a pod has at one time.
fn exclusive_cpus_of_pod(pod: &Pod) -> usize {
    let sidecars: BTreeSet<&str> = restartable(pod).collect();
    let (mut of_sidecars, mut most) = (0, 0);
    for init in pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten()) {
        let wanted = exclusive_cpus(pod, init);
        if sidecars.contains(init.name.as_str()) {
            of_sidecars += wanted;
        } else {
            most = most.max(of_sidecars + wanted);
        }
    }
    let main: usize = pod.spec.iter().flat_map(|s| &s.containers).map(|c| exclusive_cpus(pod, c)).sum();
    most.max(main + of_sidecars)
}

/// Pods with resources of their own are not given CPUs (PodLevelResourceManagers is off).
fn has_pod_level_resources(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.resources.as_ref()).is_some_and(|r| {
        crate::resources::has_pod_level(r.requests.as_ref())
            || crate::resources::has_pod_level(r.limits.as_ref())
    })
}
