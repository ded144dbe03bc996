//! When to let packets gather before the next look.
//!
//! A thread that is quicker than its senders looks after every packet, and each look costs more than the packet does. So
//! under a flood of small packets it pauses between looks for a moment that no flood notices, as network cards do with
//! their interrupts. Whatever waits for an answer is never paused for: a pause that gathers little is the last for a while.

use std::ops::AddAssign;
use std::time::Duration;

/// How long a pause is, and how soon one look has to follow the other for packets to be coming in a flood.
const PAUSE: Duration = Duration::from_micros(50);
/// A look at so many packets is worth its cost.
const ENOUGH: usize = 32;
/// What a pause has to gather to be worth its delay.
const WORTH: usize = 4;
/// Larger packets on average are streams, which come in bulk already and live on quick answers.
const SMALL: usize = 512;
/// After how many quick looks in a row the first pause is tried, and after how many at the most once it was in vain.
const FIRST_TRY: u32 = 16;
const LAST_TRY: u32 = 1024;

/// What one look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Round {
    pub packets: usize,
    pub bytes: usize,
}

impl AddAssign for Round {
    fn add_assign(&mut self, other: Round) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

#[derive(Debug)]
pub struct Gather {
    /// Quick looks in a row.
    quick: u32,
    /// How many of them it takes.
    needed: u32,
    paused: bool,
    last: Duration,
}

impl Gather {
    pub fn new() -> Gather {
        Gather { quick: 0, needed: FIRST_TRY, paused: false, last: Duration::ZERO }
    }

    /// How long to pause after a look that found `round`; `now` is asked for only when it matters.
    pub fn after(&mut self, round: Round, now: impl FnOnce() -> Duration) -> Option<Duration> {
        let paused = std::mem::take(&mut self.paused);
        if round.packets >= ENOUGH || round.bytes > SMALL * round.packets {
            // In bulk anyhow. A flood goes on being one when its next looks find less.
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

    /// Looks at packets of `size` bytes that come every `apart`, each look taking two microseconds and one for each packet.
    /// Returns how many looks and how many pauses there were per 1,000 packets.
    fn looks(apart: Duration, size: usize) -> (usize, usize) {
        let mut gather = Gather::new();
        let (mut now, mut next, mut count, mut seen, mut pauses) = (Duration::ZERO, apart, 0, 0, 0);
        while seen < 100_000 {
            now = now.max(next);
            let mut packets = 0;
            while next <= now {
                next += apart;
                packets += 1;
            }
            now += Duration::from_micros(2 + packets as u64);
            let pause = gather.after(Round { packets, bytes: packets * size }, || now);
            now += pause.unwrap_or_default();
            pauses += usize::from(pause.is_some());
            count += 1;
            seen += packets;
        }
        (count * 1000 / seen, pauses * 1000 / seen)
    }

    #[test]
    fn a_flood_of_small_packets_is_looked_at_seldom() {
        let (looks, _) = looks(Duration::from_micros(7), 92);
        assert!((50..200).contains(&looks), "{looks} looks at 1,000 packets");
    }

    #[test]
    fn what_waits_for_answers_is_hardly_ever_kept_waiting() {
        for apart in [20, 30, 49, 51, 200, 5_000] {
            let (_, pauses) = looks(Duration::from_micros(apart), 92);
            assert!(pauses < 5, "{pauses} pauses for 1,000 packets that are {apart} us apart");
        }
    }

    #[test]
    fn streams_are_never_kept_waiting() {
        assert_eq!(looks(Duration::from_micros(7), 1472).1, 0);
        assert_eq!(looks(Duration::from_micros(40), 65_000).1, 0);
    }

    #[test]
    fn a_flood_that_ends_is_waited_for_once() {
        let mut gather = Gather::new();
        let few = Round { packets: 5, bytes: 460 };
        let mut now = Duration::ZERO;
        let mut step = |gather: &mut Gather, round| {
            now += Duration::from_micros(10);
            gather.after(round, || now)
        };
        for _ in 0..100 {
            step(&mut gather, few);
        }
        assert_eq!(step(&mut gather, few), Some(PAUSE));
        assert_eq!(step(&mut gather, Round { packets: 1, bytes: 92 }), None);
        assert_eq!(step(&mut gather, few), None);
    }
}
