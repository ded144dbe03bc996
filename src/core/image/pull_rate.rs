//! How many pulls may begin: a burst at once, then so many in a second. One too many is refused and not held, because its
//! container has a back-off to wait in.

use std::time::{Duration, Instant};

pub struct PullRate {
    /// Time in which another pull becomes possible. None: there is no limit.
    interval: Option<Duration>,
    /// How far pulls may run ahead of the clock.
    depth: Duration,
    /// When all of the burst is there again, were nothing more pulled.
    full_at: Option<Instant>,
}

impl PullRate {
    /// `per_second` 0 is no limit.
    pub fn new(per_second: i32, burst: i32) -> Self {
        let rate = u32::try_from(per_second).unwrap_or(0);
        let interval = (rate > 0).then(|| Duration::from_secs(1) / rate);
        let depth = interval.unwrap_or_default() * u32::try_from(burst).unwrap_or(0);
        Self { interval, depth, full_at: None }
    }

    /// Whether a pull may begin now; it is then counted.
    pub fn admits(&mut self, now: Instant) -> bool {
        let Some(interval) = self.interval else { return true };
        let next = self.full_at.map_or(now, |at| at.max(now)) + interval;
        let admitted = next <= now + self.depth;
        if admitted {
            self.full_at = Some(next);
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_at_once_and_then_so_many_in_a_second() {
        let start = Instant::now();
        let mut rate = PullRate::new(5, 10);
        let at = |millis| start + Duration::from_millis(millis);
        let admitted = |rate: &mut PullRate, at| (0..20).filter(|_| rate.admits(at)).count();
        assert_eq!(admitted(&mut rate, at(0)), 10);
        assert_eq!(admitted(&mut rate, at(199)), 0);
        assert_eq!(admitted(&mut rate, at(200)), 1);
        assert_eq!(admitted(&mut rate, at(1000)), 4);
        assert_eq!(admitted(&mut rate, at(60_000)), 10, "no more than the burst gathers");
    }

    #[test]
    fn none_in_a_second_is_no_limit() {
        let mut rate = PullRate::new(0, 10);
        let now = Instant::now();
        assert!((0..1000).all(|_| rate.admits(now)));
    }
}
