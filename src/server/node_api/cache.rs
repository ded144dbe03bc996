//! Answers of the apiserver, remembered for a while. Never more of them than fit.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) struct Cache<K, V> {
    most: usize,
    entries: Mutex<HashMap<K, (Instant, V)>>,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    pub fn new(most: usize) -> Self {
        Self { most, entries: Mutex::default() }
    }

    pub fn get(&self, key: &K) -> Option<V> {
        let entries = self.lock();
        entries.get(key).filter(|(until, _)| *until > Instant::now()).map(|(_, value)| value.clone())
    }

    pub fn put(&self, key: K, value: V, lasts: Duration) {
        let mut entries = self.lock();
        let now = Instant::now();
        if entries.len() >= self.most && !entries.contains_key(&key) {
            entries.retain(|_, (until, _)| *until > now);
            // Still full: the one that ends first goes, so that a crowd of newcomers cannot grow this.
            while entries.len() >= self.most {
                let first = entries.iter().min_by_key(|(_, (until, _))| *until).map(|(key, _)| key.clone());
                let Some(first) = first else { break };
                entries.remove(&first);
            }
        }
        entries.insert(key, (now + lasts, value));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, (Instant, V)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_old_is_forgotten_and_what_is_too_much_makes_room() {
        let cache = Cache::new(3);
        cache.put("stale", 0, Duration::ZERO);
        assert_eq!(cache.get(&"stale"), None);
        for (key, seconds) in [("a", 50), ("b", 40), ("c", 60)] {
            cache.put(key, 1, Duration::from_secs(seconds));
        }
        cache.put("a", 2, Duration::from_secs(50));
        cache.put("d", 1, Duration::from_secs(60));
        let found: Vec<_> = ["a", "b", "c", "d"].iter().map(|key| cache.get(key)).collect();
        assert_eq!(found, [Some(2), None, Some(1), Some(1)], "the one that ended first made room");
        assert_eq!(cache.lock().len(), 3);
    }
}
