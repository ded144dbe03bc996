//! How much this node may ask of the apiserver: a token bucket for each kind of request.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::options::ClientOptions;

/// Which allowance a request counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    Normal,
    Events,
    /// Questions that strangers cause.
    Reviews,
    /// For heartbeats, which must not wait behind a crowd of pods.
    Urgent,
}

pub(crate) struct RateLimits {
    requests: TokenBucket,
    events: TokenBucket,
    reviews: TokenBucket,
}

impl RateLimits {
    pub(crate) fn new(options: &ClientOptions) -> Self {
        Self {
            requests: TokenBucket::new(options.qps, options.burst),
            events: TokenBucket::new(options.event_qps, options.event_burst),
            reviews: TokenBucket::new(options.qps, options.burst),
        }
    }

    /// Returns when a request of this priority may be sent.
    pub(crate) async fn admit(&self, priority: Priority) {
        match priority {
            Priority::Normal => self.requests.take().await,
            Priority::Events => self.events.take().await,
            Priority::Reviews => self.reviews.take().await,
            Priority::Urgent => {}
        }
    }
}

/// The kubelet's client limit: `burst` at once, then `qps` a second. Callers wait in the order they came.
struct TokenBucket {
    /// Time that one token takes to grow back.
    interval: Duration,
    /// How far the bucket may run ahead of the clock.
    depth: Duration,
    /// When the bucket is full again, were nothing more taken.
    full_at: Mutex<Instant>,
}

impl TokenBucket {
    fn new(qps: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / qps.max(1);
        Self { interval, depth: interval * burst.max(1), full_at: Mutex::new(Instant::now()) }
    }

    /// Returns when a token was taken; at once while the burst lasts.
    async fn take(&self) {
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
}
