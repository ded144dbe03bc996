//! An instant, on two clocks.

use std::cmp::Ordering;
use std::time::Duration;

use jiff::Timestamp;

/// On the wall's clock, to be shown, and on one that never jumps, for durations. In microseconds: a record holds many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    wall: i64,
    steady: i64,
}

impl Moment {
    /// `steady` counts from any instant that is the same for all moments of a process.
    pub fn new(wall: Timestamp, steady: Duration) -> Self {
        Self { wall: wall.as_microsecond(), steady: i64::try_from(steady.as_micros()).unwrap_or(i64::MAX) }
    }

    pub fn wall(self) -> Timestamp {
        Timestamp::from_microsecond(self.wall).unwrap_or_default()
    }

    /// How long after `earlier` this is; nothing if it was before.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.steady.saturating_sub(earlier.steady)).unwrap_or(0))
    }

    /// A time that somebody else has read from the wall's clock, as it looks from this moment.
    pub fn place(self, wall: Timestamp) -> Self {
        let wall = wall.as_microsecond();
        Self { wall, steady: self.steady.saturating_sub(self.wall.saturating_sub(wall)) }
    }

    pub(super) fn min(self, other: Self) -> Self {
        if other.steady < self.steady { other } else { self }
    }

    pub(super) fn max(self, other: Self) -> Self {
        if other.steady > self.steady { other } else { self }
    }

    /// By the clock that never jumps.
    pub(super) fn order(self, other: Self) -> Ordering {
        self.steady.cmp(&other.steady)
    }
}
