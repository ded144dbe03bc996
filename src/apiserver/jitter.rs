//! Chance, for what the nodes of a cluster must not all do in the same instant.

use std::hash::{BuildHasher, Hasher};

/// A number in 0..1, from the seed that the standard library draws for its hash maps: enough for jitter.
pub(crate) fn random_fraction() -> f64 {
    let bits = std::collections::hash_map::RandomState::new().build_hasher().finish();
    (bits >> 11) as f64 / (1u64 << 53) as f64
}
