//! How fast this node may talk: a token bucket for requests, and a jittered back-off for what failed.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The kubelet's client limit: `burst` at once, then `qps` a second. Callers wait in the order they came.
pub(crate) struct TokenBucket {
    /// Time that one token takes to grow back.
    interval: Duration,
    /// How far the bucket may run ahead of the clock.
    depth: Duration,
    /// When the bucket is full again, were nothing more taken.
    full_at: Mutex<Instant>,
}

impl TokenBucket {
    pub(crate) fn new(qps: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / qps.max(1);
        Self { interval, depth: interval * burst.max(1), full_at: Mutex::new(Instant::now()) }
    }

    /// Returns when a token was taken; at once while the burst lasts.
    pub(crate) async fn take(&self) {
        let ready_at = self.reserve(Instant::now());
        tokio::time::sleep_until(ready_at).await;
    }

    fn reserve(&self, now: Instant) -> Instant {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        *full_at = (*full_at).max(now) + self.interval;
        // Ahead of the clock by no more than the burst: go now. By more: wait until it is so again.
        let ahead = full_at.duration_since(now);
        now + ahead.saturating_sub(self.depth)
    }
}

/// Exponential delays between tries: doubled up to a cap, each shortened by a random part so that the nodes of a
/// cluster do not all come back in the same instant.
#[derive(Debug, Clone)]
pub(crate) struct BackOff {
    first: Duration,
    cap: Duration,
    failures: u32,
}

impl BackOff {
    pub(crate) fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap, failures: 0 }
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The delay before the next try.
    pub(crate) fn next(&mut self) -> Duration {
        let full = self.first.saturating_mul(1 << self.failures.min(16)).min(self.cap);
        self.failures = self.failures.saturating_add(1);
        full.mul_f64(0.5 + 0.5 * random_fraction())
    }
}

/// A number in 0..1, from the seed that the standard library draws for its hash maps: enough for jitter.
pub(crate) fn random_fraction() -> f64 {
    let bits = std::collections::hash_map::RandomState::new().build_hasher().finish();
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_the_rest_is_spread() {
        let bucket = TokenBucket::new(50, 3);
        let now = *bucket.full_at.lock().unwrap();
        let waits: Vec<_> = (0..5).map(|_| bucket.reserve(now).duration_since(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 20, 40]);
        let later = now + Duration::from_secs(10);
        assert_eq!(bucket.reserve(later), later, "an idle bucket fills up again");
    }

    #[test]
    fn delays_double_up_to_the_cap_and_start_over_after_success() {
        let mut back_off = BackOff::new(Duration::from_millis(800), Duration::from_secs(30));
        for full in [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0] {
            let delay = back_off.next().as_secs_f64();
            assert!(delay <= full && delay >= full / 2.0, "{delay} is not within {} and {full}", full / 2.0);
        }
        back_off.reset();
        assert!(back_off.next() <= Duration::from_millis(800));
    }

    #[test]
    fn a_thousand_failures_do_not_overflow() {
        let mut back_off = BackOff::new(Duration::from_secs(1), Duration::from_secs(30));
        for _ in 0..1000 {
            assert!(back_off.next() <= Duration::from_secs(30));
        }
    }
}
