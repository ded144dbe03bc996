//! Where on the machine a pod's resources should come from: what each of them would like, merged into one place. Pure: the
//! machine's nodes and their distances are given.

mod mask;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use mask::NumaMask;

/// Nodes that a resource can be had from. `None`: from any, it does not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hint {
    pub affinity: Option<NumaMask>,
    /// As few nodes as it could ever be had from.
    pub preferred: bool,
}

/// What one resource would like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    Anywhere,
    /// One of these. None of them: it cannot be had.
    OneOf(Vec<Hint>),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

/// The machine's NUMA nodes, and how far they are from each other where that is to count (prefer-closest-numa-nodes).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaNodes {
    pub nodes: Vec<u32>,
    pub distances: Option<BTreeMap<u32, Vec<u64>>>,
}

/// Where all wishes together are met best, or why they are not met well enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    pub hint: Hint,
    pub admitted: bool,
}

pub fn merge(policy: Policy, numa: &NumaNodes, wishes: &[Wish]) -> Merged {
    if policy == Policy::None {
        return Merged { hint: Hint { affinity: None, preferred: false }, admitted: true };
    }
    let single = policy == Policy::SingleNumaNode;
    let hints: Vec<Vec<Hint>> = wishes.iter().map(|wish| hints_of(wish, single)).collect();
    let merger = Merger {
        numa,
        all: numa.nodes.iter().copied().collect(),
        closest: !single,
        best_count: hints.iter().filter_map(|h| narrowest(h)).map(NumaMask::len).max().unwrap_or(0),
    };
    let mut hint = merger.merge(&hints);
    if single && hint.affinity == Some(merger.all) {
        hint.affinity = None;
    }
    Merged { hint, admitted: policy == Policy::BestEffort || hint.preferred }
}

fn hints_of(wish: &Wish, single: bool) -> Vec<Hint> {
    let hints = match wish {
        Wish::Anywhere => vec![Hint { affinity: None, preferred: true }],
        Wish::OneOf(hints) if hints.is_empty() => vec![Hint { affinity: None, preferred: false }],
        Wish::OneOf(hints) => hints.clone(),
    };
    if !single {
        return hints;
    }
    let on_one = |hint: &Hint| hint.preferred && hint.affinity.is_none_or(|mask| mask.len() == 1);
    hints.into_iter().filter(on_one).collect()
}

fn narrowest(hints: &[Hint]) -> Option<NumaMask> {
    let masks = hints.iter().filter_map(|hint| hint.affinity);
    masks.reduce(|best, mask| if mask.is_narrower_than(best) { mask } else { best })
}

struct Merger<'a> {
    numa: &'a NumaNodes,
    all: NumaMask,
    closest: bool,
    /// So many nodes the most demanding resource needs at least; a hint that is not preferred comes as near to it as it can.
    best_count: usize,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    mask: NumaMask,
    preferred: bool,
}

impl Merger<'_> {
    fn merge(&self, hints: &[Vec<Hint>]) -> Hint {
        let mut best = None;
        self.permutations(hints, self.all, None, true, &mut best);
        let best = best.unwrap_or(Candidate { mask: self.all, preferred: false });
        Hint { affinity: Some(best.mask), preferred: best.preferred }
    }

    /// One hint of each resource, all ways. `first` is the first mask among them: only hints that agree stay preferred.
    fn permutations(
        &self,
        hints: &[Vec<Hint>],
        mask: NumaMask,
        first: Option<NumaMask>,
        preferred: bool,
        best: &mut Option<Candidate>,
    ) {
        let Some((these, rest)) = hints.split_first() else {
            return *best = self.better(*best, Candidate { mask, preferred });
        };
        for hint in these {
            let first = first.or(hint.affinity);
            let agrees = hint.affinity.is_none() || hint.affinity == first;
            let mask = hint.affinity.map_or(mask, |affinity| mask.and(affinity));
            self.permutations(rest, mask, first, preferred && agrees && hint.preferred, best);
        }
    }

    fn better(&self, current: Option<Candidate>, candidate: Candidate) -> Option<Candidate> {
        let Some(current) = current.filter(|_| !candidate.mask.is_empty()) else {
            return if candidate.mask.is_empty() { current } else { Some(candidate) };
        };
        Some(match (current.preferred, candidate.preferred) {
            (false, true) => candidate,
            (true, false) => current,
            (true, true) => self.closer(current, candidate),
            (false, false) => self.less_bad(current, candidate),
        })
    }

    /// Of two that are not preferred: the one with as many nodes as are needed, else with more rather than fewer, else closer.
    fn less_bad(&self, current: Candidate, candidate: Candidate) -> Candidate {
        let (now, then) = (current.mask.len(), candidate.mask.len());
        match now.cmp(&self.best_count) {
            std::cmp::Ordering::Greater => self.closer(current, candidate),
            std::cmp::Ordering::Equal if then != self.best_count => current,
            std::cmp::Ordering::Equal => self.closer(current, candidate),
            std::cmp::Ordering::Less if then > self.best_count => current,
            std::cmp::Ordering::Less if then > now => candidate,
            std::cmp::Ordering::Less if then < now => current,
            std::cmp::Ordering::Less => self.closer(current, candidate),
        }
    }

    fn closer(&self, current: Candidate, candidate: Candidate) -> Candidate {
        let (a, b) = (current.mask, candidate.mask);
        let stays = match &self.numa.distances {
            Some(distances) if self.closest && a.len() == b.len() => {
                let (from, to) = (distance(distances, a), distance(distances, b));
                from < to || (from == to && a <= b)
            }
            _ => a == b || a.is_narrower_than(b),
        };
        if stays { current } else { candidate }
    }
}

/// On average, from each node to each, itself included.
fn distance(distances: &BTreeMap<u32, Vec<u64>>, mask: NumaMask) -> f64 {
    let to =
        |from: u32, to: u32| distances.get(&from).and_then(|row| row.get(to as usize)).copied().unwrap_or(0);
    let sum: u64 = mask.nodes().flat_map(|a| mask.nodes().map(move |b| to(a, b))).sum();
    let count = (mask.len() * mask.len()).max(1);
    sum as f64 / count as f64
}
