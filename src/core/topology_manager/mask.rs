//! A set of NUMA nodes.

/// Nodes above 63 are not known to the kubelet's managers either.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaMask(u64);

impl NumaMask {
    pub fn contains(self, node: u32) -> bool {
        node < 64 && self.0 >> node & 1 == 1
    }

    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..64).filter(move |node| self.contains(*node))
    }

    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Fewer nodes, or as many with lower numbers.
    pub fn is_narrower_than(self, other: Self) -> bool {
        (self.len(), self.0) < (other.len(), other.0)
    }

    /// Every set of these nodes but the empty one: the smaller ones first.
    pub fn all_of(nodes: &[u32]) -> Vec<Self> {
        let mut nodes = nodes.to_vec();
        nodes.sort_unstable();
        let mut found = vec![];
        for size in 1..=nodes.len() {
            grow(&nodes, size, Self::default(), &mut found);
        }
        found
    }
}

fn grow(nodes: &[u32], size: usize, chosen: NumaMask, found: &mut Vec<NumaMask>) {
    if size == 0 {
        return found.push(chosen);
    }
    for (n, node) in nodes.iter().enumerate() {
        if nodes.len() - n >= size {
            grow(&nodes[n + 1..], size - 1, NumaMask(chosen.0 | 1 << node), found);
        }
    }
}

impl FromIterator<u32> for NumaMask {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        Self(nodes.into_iter().filter(|node| *node < 64).fold(0, |mask, node| mask | 1 << node))
    }
}
