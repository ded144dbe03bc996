//! How long to wait before trying again what failed.

use std::time::Duration;

use jiff::Timestamp;

/// The kubelet's numbers, which users know from every CrashLoopBackOff they have ever seen.
pub const CRASH: Policy = Policy {
    first: Duration::from_secs(10),
    most: Duration::from_secs(300),
    forgive_after: Duration::from_secs(600),
};
pub const IMAGE: Policy = CRASH;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub first: Duration,
    pub most: Duration,
    /// Whoever stayed up this long starts from zero again.
    pub forgive_after: Duration,
}

/// The delay that one key (a container, an image) is serving now. Zero until something failed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backoff {
    delay: Duration,
}

impl Backoff {
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// The first instant at which a next attempt is allowed after a failure at `failed_at`.
    pub fn retry_at(&self, failed_at: Timestamp) -> Timestamp {
        failed_at.checked_add(self.delay).unwrap_or(failed_at)
    }

    /// One more attempt is being made; `was_up` is how long the one before it lasted.
    #[must_use]
    pub fn next(self, policy: Policy, was_up: Duration) -> Self {
        let delay = if was_up >= policy.forgive_after || self.delay.is_zero() {
            policy.first
        } else {
            (self.delay * 2).min(policy.most)
        };
        Self { delay }
    }

    /// What a freshly started agent assumes of a container that was already restarted `restarts` times, so that
    /// restarting the agent does not give every crash loop a burst of immediate restarts.
    pub fn resumed(policy: Policy, restarts: u32, was_up: Duration) -> Self {
        if restarts == 0 || was_up >= policy.forgive_after {
            return Self::default();
        }
        let doublings = (restarts - 1).min(16);
        Self { delay: policy.first.saturating_mul(1 << doublings).min(policy.most) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_from_ten_seconds_to_five_minutes_and_are_forgiven_after_ten() {
        let mut b = Backoff::default();
        let mut seen = vec![];
        for _ in 0..8 {
            seen.push(b.delay().as_secs());
            b = b.next(CRASH, Duration::from_secs(1));
        }
        assert_eq!(seen, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(b.next(CRASH, Duration::from_secs(600)).delay().as_secs(), 10);
    }

    #[test]
    fn a_restarted_agent_resumes_where_the_crash_loop_was() {
        let quick = Duration::from_secs(2);
        for (restarts, secs) in [(0, 0), (1, 10), (2, 20), (5, 160), (6, 300), (10_000, 300)] {
            assert_eq!(
                Backoff::resumed(CRASH, restarts, quick).delay().as_secs(),
                secs,
                "{restarts} restarts"
            );
        }
        assert_eq!(Backoff::resumed(CRASH, 7, Duration::from_secs(700)), Backoff::default());
    }
}
