//! What is remembered of a peer's probes, and when a peer changes its way. Pure.

use super::diagnose::Evidence;

/// How many of the latest sweeps count.
const REMEMBERED: u32 = 10;
/// This many in a row decide; one lost packet does not.
const DECISIVE: u8 = 3;

/// Small, because there is one for each family of thousands of peers.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Whether nothing came back, a bit for each sweep, the latest last; and how many of them there were.
    lost: u16,
    sweeps: u8,
    silent: u8,
    heard: u8,
    damaged: u8,
    /// Sweeps in a row that something was wrong in.
    troubled: u8,
    latest: Evidence,
    pub fallen_back: bool,
}

impl Record {
    /// Takes in what a sweep learned. `may_fall_back`: udp can stand in for the tunnel.
    pub fn take(&mut self, evidence: Evidence, may_fall_back: bool) {
        // The tunnel itself: what goes by the routes may go around it.
        let answered = evidence.small.is_some();
        let lost = u16::from(!(answered || evidence.udp));
        self.lost = (self.lost << 1 | lost) & ((1 << REMEMBERED) - 1);
        self.sweeps = (self.sweeps + 1).min(REMEMBERED as u8);
        let count = |so_far: u8, goes_on: bool| if goes_on { so_far.saturating_add(1) } else { 0 };
        (self.silent, self.heard) = (count(self.silent, !answered), count(self.heard, answered));
        self.damaged = count(self.damaged, evidence.small.is_some() && !evidence.udp);
        self.fallen_back = match (self.fallen_back, may_fall_back) {
            (_, false) => false,
            // Away from the tunnel only to something that works.
            (false, true) => self.silent >= DECISIVE && evidence.fallback,
            (true, true) => self.heard < DECISIVE,
        };
        self.latest = evidence;
    }

    pub fn latest(&self) -> &Evidence {
        &self.latest
    }

    /// Takes in whether something was wrong in the sweep that was taken in last.
    pub fn judge(&mut self, wrong: bool) {
        self.troubled = if wrong { self.troubled.saturating_add(1) } else { 0 };
    }

    /// Whether something has been wrong so often that it is no accident, such as a host that is just starting.
    pub fn is_trouble(&self) -> bool {
        self.troubled >= DECISIVE
    }

    /// Something was wrong and it is not clear yet whether it stays so.
    pub fn is_suspect(&self) -> bool {
        (1..DECISIVE).contains(&self.troubled)
    }

    /// Pings pass and UDP does not, over and over: checksums that the hardware was to fill in are not.
    pub fn checksums_are_damaged(&self) -> bool {
        self.damaged >= DECISIVE
    }

    pub fn loss(&self) -> Option<u8> {
        let sweeps = u32::from(self.sweeps);
        (sweeps > 0).then(|| u8::try_from(self.lost.count_ones() * 100 / sweeps).unwrap_or(100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnel(works: bool) -> Evidence {
        Evidence { small: works.then_some(0.3), udp: works, underlay: true, fallback: true, largest: None }
    }

    #[test]
    fn a_peer_falls_back_after_three_silent_sweeps_and_returns_after_three_answered_ones() {
        let mut record = Record::default();
        let mut ways = Vec::new();
        for works in [true, false, false, false, false, true, false, true, true, true] {
            record.take(tunnel(works), true);
            ways.push(record.fallen_back);
        }
        assert_eq!(ways, [false, false, false, true, true, true, true, true, true, false]);
    }

    #[test]
    fn nobody_falls_back_to_what_does_not_work_either_or_is_not_allowed() {
        let mut record = Record::default();
        for _ in 0..5 {
            record.take(Evidence { fallback: false, ..tunnel(false) }, true);
        }
        assert!(!record.fallen_back);
        for _ in 0..5 {
            record.take(tunnel(false), false);
        }
        assert!(!record.fallen_back);
        assert_eq!(record.loss(), Some(100));
    }

    #[test]
    fn one_bad_sweep_is_suspect_and_three_are_trouble() {
        let mut record = Record::default();
        let mut seen = Vec::new();
        for wrong in [false, true, true, true, false] {
            record.judge(wrong);
            seen.push((record.is_suspect(), record.is_trouble()));
        }
        assert_eq!(seen, [(false, false), (true, false), (true, false), (false, true), (false, false)]);
    }

    #[test]
    fn loss_is_of_the_latest_ten() {
        let mut record = Record::default();
        assert_eq!(record.loss(), None);
        for works in [false, true, true, true] {
            record.take(tunnel(works), false);
        }
        assert_eq!(record.loss(), Some(25));
        for _ in 0..10 {
            record.take(tunnel(true), false);
        }
        assert_eq!(record.loss(), Some(0));
    }
}
