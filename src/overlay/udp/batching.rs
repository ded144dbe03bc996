//! When to let packets accumulate before the next poll.
//!
//! A thread that is faster than its senders polls once for every packet, and a poll costs more than the packet. So under a
//! flood of small packets it pauses between polls for a moment, as network cards do with their interrupts. Request-response
//! traffic is not delayed: after a pause that collected little there is none for a while.

use std::ops::AddAssign;
use std::time::Duration;

/// The length of a pause, and the longest interval between polls that counts as a flood.
const PAUSE: Duration = Duration::from_micros(50);
/// A poll that finds this many packets is worth its cost.
const ENOUGH: usize = 32;
/// What a pause has to collect to be worth its delay.
const WORTH: usize = 4;
/// Larger packets on average are streams, which come in bulk already and depend on quick acknowledgements.
const SMALL: usize = 512;
/// Quick polls in a row before the first pause, and the most after pauses that collected little.
const FIRST_TRY: u32 = 16;
const LAST_TRY: u32 = 1024;

/// What one poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchSize {
    pub packets: usize,
    pub bytes: usize,
}

impl AddAssign for BatchSize {
    fn add_assign(&mut self, other: BatchSize) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

#[derive(Debug)]
pub struct BatchPacing {
    /// Quick polls in a row.
    quick: u32,
    /// How many are needed for a pause.
    needed: u32,
    paused: bool,
    last: Duration,
}

impl BatchPacing {
    pub fn new() -> BatchPacing {
        BatchPacing { quick: 0, needed: FIRST_TRY, paused: false, last: Duration::ZERO }
    }

    /// How long to pause after a poll that found `round`; `now` is called only when it matters.
    pub fn after(&mut self, round: BatchSize, now: impl FnOnce() -> Duration) -> Option<Duration> {
        let paused = std::mem::take(&mut self.paused);
        if round.packets >= ENOUGH || round.bytes > SMALL * round.packets {
            // In bulk already. The count of quick polls is kept for when the next polls find less.
            return None;
        }
        let now = now();
        let since = now.saturating_sub(self.last);
        self.last = now;
        if paused {
            if round.packets < WORTH {
                self.quick = 0;
                self.needed = (self.needed * 2).min(LAST_TRY);
                return None;
            }
            self.needed = FIRST_TRY;
        } else if since > PAUSE {
            self.quick = 0;
            return None;
        } else {
            self.quick += 1;
        }
        self.paused = self.quick >= self.needed;
        self.paused.then_some(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls for packets of `size` bytes that come every `apart`; a poll takes two microseconds and one for each packet.
    /// Returns the polls and the pauses per 1,000 packets.
    fn polls(apart: Duration, size: usize) -> (usize, usize) {
        let mut pacing = BatchPacing::new();
        let (mut now, mut next, mut count, mut seen, mut pauses) = (Duration::ZERO, apart, 0, 0, 0);
        while seen < 100_000 {
            now = now.max(next);
            let mut packets = 0;
            while next <= now {
                next += apart;
                packets += 1;
            }
            now += Duration::from_micros(2 + packets as u64);
            let pause = pacing.after(BatchSize { packets, bytes: packets * size }, || now);
            now += pause.unwrap_or_default();
            pauses += usize::from(pause.is_some());
            count += 1;
            seen += packets;
        }
        (count * 1000 / seen, pauses * 1000 / seen)
    }

    #[test]
    fn a_flood_of_small_packets_is_polled_for_seldom() {
        let (polls, _) = polls(Duration::from_micros(7), 92);
        assert!((50..200).contains(&polls), "{polls} polls for 1,000 packets");
    }

    #[test]
    fn what_waits_for_answers_is_hardly_ever_kept_waiting() {
        for apart in [20, 30, 49, 51, 200, 5_000] {
            let (_, pauses) = polls(Duration::from_micros(apart), 92);
            assert!(pauses < 5, "{pauses} pauses for 1,000 packets that are {apart} us apart");
        }
    }

    #[test]
    fn streams_are_never_kept_waiting() {
        assert_eq!(polls(Duration::from_micros(7), 1472).1, 0);
        assert_eq!(polls(Duration::from_micros(40), 65_000).1, 0);
    }

    #[test]
    fn a_flood_that_ends_is_waited_for_once() {
        let mut pacing = BatchPacing::new();
        let few = BatchSize { packets: 5, bytes: 460 };
        let mut now = Duration::ZERO;
        let mut step = |pacing: &mut BatchPacing, round| {
            now += Duration::from_micros(10);
            pacing.after(round, || now)
        };
        for _ in 0..100 {
            step(&mut pacing, few);
        }
        assert_eq!(step(&mut pacing, few), Some(PAUSE));
        assert_eq!(step(&mut pacing, BatchSize { packets: 1, bytes: 92 }), None);
        assert_eq!(step(&mut pacing, few), None);
    }
}
