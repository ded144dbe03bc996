//! How long to wait before trying again what failed. Pure: the time is passed in, and so is chance.

use std::time::Duration;

use jiff::Timestamp;

/// How the delays of one kind of attempt grow: doubled from `first` to `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub first: Duration,
    pub most: Duration,
    /// An attempt that lasted this long was a success: the next failure starts from `first` again.
    pub forgive_after: Duration,
}

impl Policy {
    /// Only [`Backoff::reset`] starts these delays over.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, forgive_after: Duration::MAX }
    }
}

/// The delay that one thing (a container, an image, a connection) is serving now. Zero until it failed once.
///
/// ```
/// # use std::time::Duration;
/// # use keelson_kit::backoff::{Backoff, Policy};
/// const RECONNECT: Policy = Policy::new(Duration::from_millis(250), Duration::from_secs(10));
/// let mut backoff = Backoff::default();
/// assert_eq!(backoff.fail(RECONNECT), Duration::from_millis(250));
/// assert_eq!(backoff.fail(RECONNECT), Duration::from_millis(500));
/// backoff.reset();
/// assert_eq!(backoff.fail(RECONNECT), Duration::from_millis(250));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backoff {
    delay: Duration,
}

impl Backoff {
    pub fn delay(&self) -> Duration {
        self.delay
    }

    /// One more attempt failed at once; returns how long to wait before the next.
    pub fn fail(&mut self, policy: Policy) -> Duration {
        *self = self.next(policy, Duration::ZERO);
        self.delay
    }

    /// An attempt succeeded.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// One more attempt is being made; `was_up` is how long the one before it lasted.
    #[must_use]
    pub fn next(self, policy: Policy, was_up: Duration) -> Self {
        let delay = if was_up >= policy.forgive_after || self.delay.is_zero() {
            policy.first
        } else {
            self.delay.saturating_mul(2)
        };
        Self { delay: delay.min(policy.most) }
    }

    /// What a process that was just started assumes of something that was already tried again `retries` times, so that
    /// its own restart does not give everything a burst of immediate attempts.
    pub fn resumed(policy: Policy, retries: u32, was_up: Duration) -> Self {
        if retries == 0 || was_up >= policy.forgive_after {
            return Self::default();
        }
        let doublings = (retries - 1).min(16);
        Self { delay: policy.first.saturating_mul(1 << doublings).min(policy.most) }
    }

    /// The first instant at which a next attempt is allowed after a failure at `failed_at`; never before `now`.
    pub fn retry_at(&self, failed_at: Timestamp, now: Timestamp) -> Timestamp {
        failed_at.checked_add(self.delay).unwrap_or(Timestamp::MAX).max(now)
    }

    /// The delay, shortened by up to half, so that those who failed together do not come back together. `fraction` is a
    /// random number from 0 to 1.
    pub fn jittered(&self, fraction: f64) -> Duration {
        self.delay.mul_f64(0.5 + 0.5 * fraction.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        first: Duration::from_secs(10),
        most: Duration::from_secs(300),
        forgive_after: Duration::from_secs(600),
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn delays_double_from_the_first_to_the_longest_and_are_forgiven() {
        let mut backoff = Backoff::default();
        let mut seen = vec![];
        for _ in 0..8 {
            seen.push(backoff.delay().as_secs());
            backoff = backoff.next(POLICY, Duration::from_secs(1));
        }
        assert_eq!(seen, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff.next(POLICY, Duration::from_secs(600)).delay().as_secs(), 10);
    }

    #[test]
    fn a_restarted_process_resumes_where_the_delays_were() {
        let quick = Duration::from_secs(2);
        for (retries, secs) in [(0, 0), (1, 10), (2, 20), (5, 160), (6, 300), (10_000, 300)] {
            let resumed = Backoff::resumed(POLICY, retries, quick);
            assert_eq!(resumed.delay().as_secs(), secs, "{retries} retries");
        }
        assert_eq!(Backoff::resumed(POLICY, 7, Duration::from_secs(700)), Backoff::default());
    }

    #[test]
    fn a_thousand_failures_neither_overflow_nor_pass_the_longest() {
        let policy = Policy::new(Duration::from_secs(1), Duration::MAX);
        let mut backoff = Backoff::default();
        for _ in 0..1000 {
            backoff.fail(policy);
        }
        assert_eq!(backoff.delay(), Duration::MAX);
        assert_eq!(backoff.retry_at(at(5), at(5)), Timestamp::MAX);
        assert_eq!(backoff.fail(POLICY), POLICY.most);
    }

    #[test]
    fn a_retry_is_never_in_the_past() {
        let backoff = Backoff::default().next(POLICY, Duration::ZERO);
        assert_eq!(backoff.retry_at(at(100), at(105)), at(110), "still waiting");
        assert_eq!(backoff.retry_at(at(100), at(500)), at(500), "long over");
    }

    #[test]
    fn jitter_takes_away_up_to_half() {
        let backoff = Backoff::default().next(POLICY, Duration::ZERO);
        for (fraction, millis) in [(0.0, 5_000), (0.5, 7_500), (1.0, 10_000), (7.0, 10_000)] {
            assert_eq!(backoff.jittered(fraction).as_millis(), millis, "{fraction}");
        }
    }
}
