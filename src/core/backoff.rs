//! How long each part of a pod waits before it is tried again: the policies, and one retry on top of them.

use std::time::Duration;

use jiff::Timestamp;
pub use keelson_kit::backoff::{Backoff, Policy};

/// The kubelet's numbers, which users know from every CrashLoopBackOff they have ever seen.
pub const CRASH: Policy = Policy {
    first: Duration::from_secs(10),
    most: Duration::from_secs(300),
    forgive_after: Duration::from_secs(600),
};
pub const IMAGE: Policy = CRASH;

/// How long crashed containers wait on this node: by the kubelet's numbers, or shorter where it is configured so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CrashPolicy(pub Policy);

impl CrashPolicy {
    /// Doubled up to `longest`. What counts as a success stays the same.
    pub fn up_to(longest: Duration) -> Self {
        Self(Policy { first: CRASH.first.min(longest), most: longest, ..CRASH })
    }
}

impl Default for CrashPolicy {
    fn default() -> Self {
        Self(CRASH)
    }
}

/// A network that is not ready yet often is a moment later.
pub const SANDBOX: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(15));
pub const VOLUMES: Policy = Policy::new(Duration::from_millis(500), Duration::from_secs(120));
/// Clean-up and observation, which nobody sees fail: short at first, never long.
pub const QUIET: Policy = Policy::new(Duration::from_millis(250), Duration::from_secs(16));

/// Pauses between attempts at something that keeps failing, until it succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retry {
    backoff: Backoff,
    failures: u32,
    at: Option<Timestamp>,
}

impl Retry {
    pub fn failed(&mut self, now: Timestamp) {
        self.backoff.fail(QUIET);
        self.failures += 1;
        self.at = Some(self.backoff.retry_at(now, now));
    }

    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// For a failure that serves a back-off of its own.
    pub fn hold_until(&mut self, at: Timestamp) {
        self.at = Some(at);
    }

    /// The next attempt is not to be made before this.
    pub fn at(&self) -> Option<Timestamp> {
        self.at
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }
}
