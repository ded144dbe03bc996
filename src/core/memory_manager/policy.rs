//! The static policy: memory and huge pages of Guaranteed pods come from as few NUMA nodes as can give them, and nodes that
//! give together give to nobody alone.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::state::{Block, Machine, MemoryState, NodeMemory, take};
use crate::ids::PodUid;
use crate::qos::{QosClass, qos_of};
use crate::resources::{amount_of, has_pod_level};
use crate::topology_manager::{Hint, NumaMask, Wish};

type Sizes = BTreeMap<String, u64>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// As it is with nothing given to anybody.
    machine: Machine,
}

/// Why a container's memory cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    )]
    NoNodes,
    #[error("[memorymanager] failed to find the default preferred hint")]
    NotPreferred,
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NotExtended,
    #[error("[memorymanager] failed to find the extended preferred hint")]
    ExtendedNotPreferred,
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Violates,
}

impl MemoryPolicy {
    pub fn new(machine: Machine) -> Self {
        Self { machine }
    }

    pub fn initial(&self) -> MemoryState {
        MemoryState { machine: self.machine.clone(), ..MemoryState::default() }
    }

    /// What is wrong with a state that was read back.
    pub fn check(&self, state: &MemoryState) -> Result<(), String> {
        let mut expected = self.machine.clone();
        for (pod, containers) in &state.blocks {
            for (container, block) in
                containers.iter().flat_map(|(c, blocks)| blocks.iter().map(move |b| (c, b)))
            {
                let known =
                    |id: &u32| expected.get(id).is_some_and(|n| n.memory_map.contains_key(&block.resource));
                if !block.numa_affinity.iter().all(known) {
                    return Err(format!(
                        "container {container} of pod {pod} has memory that is not there: {block:?}"
                    ));
                }
                take(&mut expected, block, block.size);
            }
        }
        let differs = |id: &u32| {
            let (Some(now), Some(then)) = (state.machine.get(id), expected.get(id)) else { return true };
            now.number_of_assignments != then.number_of_assignments
                || sorted(&now.cells) != sorted(&then.cells)
                || !tables_agree(&state.machine, &expected, *id)
        };
        match state.machine.keys().chain(expected.keys()).find(|id| differs(id)) {
            Some(id) => Err(format!("what NUMA node {id} has given does not match what containers have")),
            None => Ok(()),
        }
    }

    /// Gives a container its memory, once. `hint` is where the topology manager wants it from.
    pub fn allocate(
        &self,
        state: &mut MemoryState,
        pod: &Pod,
        uid: &PodUid,
        container: &Container,
        hint: Hint,
    ) -> Result<(), Refusal> {
        if !is_placed(pod) {
            return Ok(());
        }
        if let Some(blocks) = state.of(uid, &container.name).cloned() {
            remember(state, pod, uid, container, &blocks);
            return Ok(());
        }
        let wanted = wanted(container);
        let mask = choose(state, uid, &wanted, hint)?;
        if violates(&state.machine, mask) {
            return Err(Refusal::Violates);
        }
        let mut blocks = vec![];
        for (resource, size) in wanted {
            let reusable = state.reusable(uid, mask, &resource);
            let block = Block { numa_affinity: mask.nodes().collect(), resource, size };
            take(&mut state.machine, &block, size.saturating_sub(reusable));
            blocks.push(block);
        }
        remember(state, pod, uid, container, &blocks);
        state.blocks.entry(uid.clone()).or_default().insert(container.name.clone(), blocks.clone());
        count_once(state, pod, uid, container, &blocks);
        Ok(())
    }

    /// Whether it is said where this pod's memory comes from.
    pub fn places(&self, pod: &Pod) -> bool {
        is_placed(pod)
    }

    /// Where a container's memory could come from, by resource.
    pub fn wishes(&self, state: &MemoryState, pod: &Pod, uid: &PodUid, container: &Container) -> Vec<Wish> {
        if !is_placed(pod) {
            return vec![Wish::Anywhere];
        }
        wishes(state, uid, state.of(uid, &container.name), &wanted(container))
    }

    /// Where all memory of a pod could come from, by resource.
    pub fn pod_wishes(&self, state: &MemoryState, pod: &Pod, uid: &PodUid) -> Vec<Wish> {
        if !is_placed(pod) {
            return vec![Wish::Anywhere];
        }
        let spec = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
        let given = spec.filter_map(|c| state.of(uid, &c.name)).next();
        wishes(state, uid, given, &wanted_by_pod(pod))
    }
}

/// Of the kubelet's, only pods whose containers say what they need; PodLevelResourceManagers is off.
fn is_placed(pod: &Pod) -> bool {
    let own = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    let pod_level =
        own.is_some_and(|r| has_pod_level(r.requests.as_ref()) || has_pod_level(r.limits.as_ref()));
    !pod_level && qos_of(pod) == QosClass::Guaranteed
}

fn wanted(container: &Container) -> Sizes {
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let is_memory = |name: &str| name == "memory" || name.starts_with("hugepages-");
    let sizes = requests.into_iter().flatten().filter(|(name, _)| is_memory(name));
    sizes
        .map(|(name, quantity)| {
            let size = amount_of(quantity).map_or(0, |amount| amount.value());
            (name.clone(), u64::try_from(size).unwrap_or(0))
        })
        .collect()
}

/// The most that a pod has at one time.
fn wanted_by_pod(pod: &Pod) -> Sizes {
    let (mut sidecars, mut inits, mut main) = (Sizes::new(), Sizes::new(), Sizes::new());
    for init in pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten()) {
        for (resource, size) in wanted(init) {
            let beside = sidecars.entry(resource.clone()).or_default();
            if init.restart_policy.as_deref() == Some("Always") {
                *beside += size;
            } else {
                let most = inits.entry(resource).or_default();
                *most = (*most).max(*beside + size);
            }
        }
    }
    for (resource, size) in pod.spec.iter().flat_map(|s| &s.containers).flat_map(wanted) {
        *main.entry(resource).or_default() += size;
    }
    for (resource, size) in &mut main {
        let lasting = *size + sidecars.get(resource).copied().unwrap_or(0);
        *size = lasting.max(inits.get(resource).copied().unwrap_or(0));
    }
    main
}

fn wishes(state: &MemoryState, uid: &PodUid, given: Option<&Vec<Block>>, wanted: &Sizes) -> Vec<Wish> {
    let Some(blocks) = given else {
        let hints = hints(state, uid, wanted);
        // Nothing anywhere: the kubelet has no opinion then, and the allocation fails.
        return match hints.is_empty() {
            true => vec![Wish::Anywhere],
            false => wanted.keys().map(|_| Wish::OneOf(hints.clone())).collect(),
        };
    };
    let as_given =
        blocks.len() == wanted.len() && blocks.iter().all(|b| wanted.get(&b.resource) == Some(&b.size));
    if !as_given {
        return vec![Wish::Anywhere];
    }
    blocks.iter().map(|b| Wish::OneOf(vec![Hint { affinity: Some(b.mask()), preferred: true }])).collect()
}

fn hints(state: &MemoryState, uid: &PodUid, wanted: &Sizes) -> Vec<Hint> {
    let nodes: Vec<u32> = state.machine.keys().copied().collect();
    if wanted.is_empty() {
        return vec![];
    }
    let (mut fewest, mut found) = (nodes.len(), vec![]);
    for mask in NumaMask::all_of(&nodes) {
        let sum = |resource: &str, of: fn(&super::MemoryTable) -> u64| -> u64 {
            let tables = mask.nodes().filter_map(|id| state.machine.get(&id)?.memory_map.get(resource));
            tables.map(of).sum()
        };
        if wanted.iter().any(|(resource, size)| sum(resource, |t| t.allocatable) < *size) {
            continue;
        }
        fewest = fewest.min(mask.len());
        let alone = mask.len() == 1;
        let busy_with_others = |id: u32| {
            let Some(node) = state.machine.get(&id) else { return false };
            match alone {
                true => node.cells.len() > 1,
                false => node.number_of_assignments > 0 && !gives_with(node, mask),
            }
        };
        let short = |(resource, size): (&String, &u64)| {
            sum(resource, |t| t.free) + state.reusable(uid, mask, resource) < *size
        };
        if !mask.nodes().any(busy_with_others) && !wanted.iter().any(short) {
            found.push(mask);
        }
    }
    found.into_iter().map(|mask| Hint { affinity: Some(mask), preferred: mask.len() == fewest }).collect()
}

/// Whether a node gives memory together with exactly these.
fn gives_with(node: &NodeMemory, mask: NumaMask) -> bool {
    node.cells.len() > 1 && node.cells.len() == mask.len() && node.cells.iter().all(|id| mask.contains(*id))
}

fn violates(machine: &Machine, mask: NumaMask) -> bool {
    let busy =
        |id: u32| machine.get(&id).is_some_and(|n| n.number_of_assignments > 0 && !gives_with(n, mask));
    mask.len() > 1 && mask.nodes().any(busy)
}

fn choose(state: &MemoryState, uid: &PodUid, wanted: &Sizes, hint: Hint) -> Result<NumaMask, Refusal> {
    let all = hints(state, uid, wanted);
    let (mask, preferred) = match hint.affinity {
        Some(mask) => (mask, hint.preferred),
        None => {
            let (mask, preferred) = best(&all).ok_or(Refusal::NoNodes)?;
            if hint.preferred && !preferred {
                return Err(Refusal::NotPreferred);
            }
            (mask, preferred)
        }
    };
    let free = |resource: &str| -> u64 {
        let tables = mask.nodes().filter_map(|id| state.machine.get(&id)?.memory_map.get(resource));
        tables.map(|table| table.free).sum()
    };
    if wanted.iter().all(|(resource, size)| free(resource) >= *size) {
        return Ok(mask);
    }
    let wider: Vec<Hint> =
        all.into_iter().filter(|h| h.affinity.is_some_and(|wide| wide.and(mask) == mask)).collect();
    let (extended, extended_preferred) = best(&wider).ok_or(Refusal::NotExtended)?;
    if preferred && !extended_preferred {
        return Err(Refusal::ExtendedNotPreferred);
    }
    Ok(extended)
}

fn best(hints: &[Hint]) -> Option<(NumaMask, bool)> {
    let mut best: Option<(NumaMask, bool)> = None;
    for hint in hints {
        let Some(mask) = hint.affinity else { continue };
        let better = best.is_none_or(|(now, preferred)| {
            (hint.preferred && !preferred) || (hint.preferred == preferred && mask.is_narrower_than(now))
        });
        if better {
            best = Some((mask, hint.preferred));
        }
    }
    best
}

fn is_init(pod: &Pod, name: &str) -> bool {
    let inits = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
    inits.into_iter().any(|c| c.name == name && c.restart_policy.as_deref() != Some("Always"))
}

/// What an init container has is there for those after it; what those take of it is not.
fn remember(state: &mut MemoryState, pod: &Pod, uid: &PodUid, container: &Container, blocks: &[Block]) {
    let of_pod = state.reusable.take().filter(|(of, _)| of == uid);
    let mut sizes = of_pod.map(|(_, sizes)| sizes).unwrap_or_default();
    for block in blocks {
        let key = (block.mask(), block.resource.clone());
        if is_init(pod, &container.name) {
            let size = sizes.entry(key).or_default();
            *size = (*size).max(block.size);
        } else if let Some(size) = sizes.get_mut(&key) {
            *size = size.saturating_sub(block.size);
        }
    }
    state.reusable = Some((uid.clone(), sizes));
}

/// What a container has taken over from init containers is counted as its own only.
fn count_once(state: &mut MemoryState, pod: &Pod, uid: &PodUid, container: &Container, blocks: &[Block]) {
    let Some(of_pod) = state.blocks.get_mut(uid) else { return };
    for block in blocks {
        let mut left = block.size;
        let inits = pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
        for init in inits.take_while(|init| init.name != container.name) {
            if !is_init(pod, &init.name) {
                continue;
            }
            for theirs in of_pod.get_mut(&init.name).into_iter().flatten() {
                if theirs.resource == block.resource && theirs.mask() == block.mask() {
                    let taken = left.min(theirs.size);
                    theirs.size -= taken;
                    left -= taken;
                }
            }
        }
    }
}

fn sorted(cells: &[u32]) -> Vec<u32> {
    let mut cells = cells.to_vec();
    cells.sort_unstable();
    cells
}

/// How nodes that give together share what they gave does not matter.
fn tables_agree(a: &Machine, b: &Machine, id: u32) -> bool {
    let (Some(one), Some(other)) = (a.get(&id), b.get(&id)) else { return false };
    let fixed = |node: &NodeMemory| -> Vec<_> {
        node.memory_map.iter().map(|(r, t)| (r.clone(), t.total, t.system_reserved, t.allocatable)).collect()
    };
    let given = |machine: &Machine, resource: &str| -> (u64, u64) {
        let tables = one.cells.iter().filter_map(|id| machine.get(id)?.memory_map.get(resource));
        tables.fold((0, 0), |(free, reserved), t| (free + t.free, reserved + t.reserved))
    };
    fixed(one) == fixed(other)
        && one.memory_map.keys().all(|resource| given(a, resource) == given(b, resource))
}
