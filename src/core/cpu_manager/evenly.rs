//! CPUs taken evenly from as few NUMA nodes as can give them, so that what is left is as even as possible.

use std::collections::BTreeMap;

use super::take::Taking;
use super::topology::Part;
use crate::cpuset::CpuSet;

/// What some nodes would give, and how uneven the machine would be then.
struct Choice {
    nodes: Vec<u32>,
    /// Those of them that give what does not divide.
    remainder: Vec<u32>,
    unevenness: f64,
}

/// None where it cannot be done evenly.
pub(super) fn taken(taking: &Taking<'_>, group: usize) -> Option<CpuSet> {
    let free: BTreeMap<u32, usize> =
        taking.ordered(Part::NumaNode).into_iter().map(|n| (n, taking.free_in(Part::NumaNode, n))).collect();
    let nodes = taking.ordered(Part::NumaNode);
    let (fewest, most) = how_many_nodes(taking, group, nodes.len());
    let choice = (fewest..=most).find_map(|k| best(&nodes, k, &free, taking.needed, group))?;
    let each = share(taking.needed, choice.nodes.len(), group);
    let mut result = CpuSet::default();
    let mut give = |node: u32, count: usize| {
        let inside = taking.free.iter().filter(|(_, place)| place.numa_node == node).map(|(cpu, _)| *cpu);
        let inside: CpuSet = inside.filter(|cpu| !result.contains(*cpu)).collect();
        if inside.len() >= count {
            result.extend(taking.among(&inside, count).packed().iter());
        }
        inside.len() >= count
    };
    for node in &choice.nodes {
        give(*node, each);
    }
    let mut remainder = taking.needed - each * choice.nodes.len();
    while remainder > 0 {
        let before = remainder;
        for node in &choice.remainder {
            if remainder > 0 && give(*node, group) {
                remainder -= group;
            }
        }
        if remainder == before {
            return None;
        }
    }
    (result.len() == taking.needed).then_some(result)
}

fn how_many_nodes(taking: &Taking<'_>, group: usize, available: usize) -> (usize, usize) {
    let groups = taking.topology.cpus().len().div_ceil(group);
    let per_node = groups.div_ceil(taking.topology.numa_nodes().len().max(1)).max(1);
    let needed = taking.needed.div_ceil(group);
    (needed.div_ceil(per_node), needed.min(available))
}

fn share(count: usize, nodes: usize, group: usize) -> usize {
    count / nodes / group * group
}

fn best(nodes: &[u32], k: usize, free: &BTreeMap<u32, usize>, count: usize, group: usize) -> Option<Choice> {
    let mut best: Option<Choice> = None;
    combinations(nodes, k, &mut |combination| {
        if let Some(best) = &mut best {
            overwrite(&mut best.nodes, combination);
        }
        if best.as_ref().is_some_and(|best| best.unevenness == 0.0) {
            return false;
        }
        if let Some(choice) = choice(combination, free, count, group)
            && best.as_ref().is_none_or(|best| choice.unevenness < best.unevenness)
        {
            best = Some(choice);
        }
        true
    });
    best
}

/// None for nodes that cannot give it.
fn choice(nodes: &[u32], free: &BTreeMap<u32, usize>, count: usize, group: usize) -> Option<Choice> {
    let of = |node: &u32| free.get(node).copied().unwrap_or(0);
    let each = share(count, nodes.len(), group);
    let groups: usize = nodes.iter().map(|n| of(n) / group).sum();
    if groups * group < count || nodes.iter().any(|n| of(n) < each) {
        return None;
    }
    let mut left = free.clone();
    for node in nodes {
        left.entry(*node).and_modify(|cpus| *cpus -= each);
    }
    let remainder = count - each * nodes.len();
    if remainder == 0 {
        return Some(Choice { nodes: nodes.into(), remainder: vec![], unevenness: deviation(&left) });
    }
    let able: Vec<u32> = nodes.iter().copied().filter(|n| left.get(n).is_some_and(|l| *l >= group)).collect();
    let mut best: Option<Choice> = None;
    for k in (1..=able.len()).rev() {
        combinations(&able, k, &mut |subset| {
            if let Some(best) = &mut best {
                overwrite(&mut best.remainder, subset);
            }
            let Some(left) = without_remainder(&left, subset, remainder, group) else { return true };
            let unevenness = deviation(&left);
            if best.as_ref().is_none_or(|best| unevenness < best.unevenness) {
                best = Some(Choice { nodes: nodes.into(), remainder: subset.into(), unevenness });
            }
            true
        });
    }
    best
}

/// What is left when the nodes of `subset` have given the remainder in turns.
fn without_remainder(
    left: &BTreeMap<u32, usize>,
    subset: &[u32],
    mut remainder: usize,
    group: usize,
) -> Option<BTreeMap<u32, usize>> {
    let mut left = left.clone();
    while remainder > 0 {
        let before = remainder;
        for node in subset {
            let Some(cpus) = left.get_mut(node).filter(|cpus| **cpus >= group) else { continue };
            if remainder > 0 {
                *cpus -= group;
                remainder -= group;
            }
        }
        if remainder == before {
            return None;
        }
    }
    Some(left)
}

/// The standard deviation, to three digits as the kubelet compares it.
fn deviation(left: &BTreeMap<u32, usize>) -> f64 {
    let digits = |x: f64| (x * 1000.0).round() / 1000.0;
    let count = left.len() as f64;
    let mean = digits(left.values().map(|v| *v as f64).sum::<f64>() / count);
    digits((left.values().map(|v| (*v as f64 - mean).powi(2)).sum::<f64>() / count).sqrt())
}

/// The kubelet keeps the best combination in a slice that it goes on appending to, so that of four or more nodes those past
/// the slice's last growth end up as those of the last combination that began alike. Its choice is ours.
fn overwrite(kept: &mut [u32], visited: &[u32]) {
    let Some(steps) = kept.len().checked_sub(1).filter(|_| kept.len() == visited.len()) else { return };
    let own = (1 << steps.checked_ilog2().unwrap_or(0)) + 1;
    if own < kept.len() && kept[..own] == visited[..own] {
        kept.copy_from_slice(visited);
    }
}

/// Every choice of `k` items, in order, until `visit` says no.
fn combinations(items: &[u32], k: usize, visit: &mut impl FnMut(&[u32]) -> bool) {
    fn go(items: &[u32], k: usize, chosen: &mut Vec<u32>, visit: &mut impl FnMut(&[u32]) -> bool) -> bool {
        if k == 0 {
            return visit(chosen);
        }
        for (n, item) in items.iter().enumerate().take((items.len() + 1).saturating_sub(k)) {
            chosen.push(*item);
            let on = go(&items[n + 1..], k - 1, chosen, visit);
            chosen.pop();
            if !on {
                return false;
            }
        }
        true
    }
    if k > 0 {
        go(items, k, &mut Vec::with_capacity(k), visit);
    }
}
