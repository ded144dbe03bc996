//! Random numbers for choices that need no cryptography.

use std::hash::{BuildHasher, Hasher, RandomState};

/// From the random seed of the standard library's hash maps.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
