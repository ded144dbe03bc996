//! The latest probe results of one peer, and when they make it fall back to udp. Pure.

use super::diagnose::ProbeResult;

/// How many of the latest sweeps count.
const REMEMBERED: u32 = 10;
/// This many in a row decide; one lost packet does not.
const DECISIVE: u8 = 3;

/// Kept small: there is one for each family of thousands of peers.
#[derive(Debug, Clone, Default)]
pub struct ProbeHistory {
    /// One bit for each sweep, set where nothing came back, the latest lowest; and how many sweeps there were.
    lost: u16,
    sweeps: u8,
    silent: u8,
    answered_in_row: u8,
    damaged: u8,
    /// Sweeps in a row with a problem.
    troubled: u8,
    latest: ProbeResult,
    pub fallen_back: bool,
}

impl ProbeHistory {
    /// Adds the result of a sweep. `may_fall_back`: udp can replace the tunnel.
    pub fn add(&mut self, result: ProbeResult, may_fall_back: bool) {
        // Only the tunnel itself counts: packets that follow the routes may bypass it.
        let answered = result.small.is_some();
        let lost = u16::from(!(answered || result.udp));
        self.lost = (self.lost << 1 | lost) & ((1 << REMEMBERED) - 1);
        self.sweeps = (self.sweeps + 1).min(REMEMBERED as u8);
        let count = |so_far: u8, goes_on: bool| if goes_on { so_far.saturating_add(1) } else { 0 };
        (self.silent, self.answered_in_row) =
            (count(self.silent, !answered), count(self.answered_in_row, answered));
        self.damaged = count(self.damaged, result.small.is_some() && !result.udp);
        self.fallen_back = match (self.fallen_back, may_fall_back) {
            (_, false) => false,
            // Leave the tunnel only for a path that works.
            (false, true) => self.silent >= DECISIVE && result.fallback,
            (true, true) => self.answered_in_row < DECISIVE,
        };
        self.latest = result;
    }

    pub fn latest(&self) -> &ProbeResult {
        &self.latest
    }

    /// Records whether the latest sweep found a problem.
    pub fn set_wrong(&mut self, wrong: bool) {
        self.troubled = if wrong { self.troubled.saturating_add(1) } else { 0 };
    }

    /// Whether problems lasted so long that they are no accident, such as a host that is just starting.
    pub fn is_trouble(&self) -> bool {
        self.troubled >= DECISIVE
    }

    /// There was a problem, and it is not clear yet whether it lasts.
    pub fn is_suspect(&self) -> bool {
        (1..DECISIVE).contains(&self.troubled)
    }

    /// Pings pass and UDP does not, repeatedly: checksum offload is broken.
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

    fn tunnel(works: bool) -> ProbeResult {
        ProbeResult { small: works.then_some(0.3), udp: works, underlay: true, fallback: true, largest: None }
    }

    #[test]
    fn a_peer_falls_back_after_three_silent_sweeps_and_returns_after_three_answered_ones() {
        let mut history = ProbeHistory::default();
        let mut ways = Vec::new();
        for works in [true, false, false, false, false, true, false, true, true, true] {
            history.add(tunnel(works), true);
            ways.push(history.fallen_back);
        }
        assert_eq!(ways, [false, false, false, true, true, true, true, true, true, false]);
    }

    #[test]
    fn nobody_falls_back_to_what_does_not_work_either_or_is_not_allowed() {
        let mut history = ProbeHistory::default();
        for _ in 0..5 {
            history.add(ProbeResult { fallback: false, ..tunnel(false) }, true);
        }
        assert!(!history.fallen_back);
        for _ in 0..5 {
            history.add(tunnel(false), false);
        }
        assert!(!history.fallen_back);
        assert_eq!(history.loss(), Some(100));
    }

    #[test]
    fn one_bad_sweep_is_suspect_and_three_are_trouble() {
        let mut history = ProbeHistory::default();
        let mut seen = Vec::new();
        for wrong in [false, true, true, true, false] {
            history.set_wrong(wrong);
            seen.push((history.is_suspect(), history.is_trouble()));
        }
        assert_eq!(seen, [(false, false), (true, false), (true, false), (false, true), (false, false)]);
    }

    #[test]
    fn loss_is_of_the_latest_ten() {
        let mut history = ProbeHistory::default();
        assert_eq!(history.loss(), None);
        for works in [false, true, true, true] {
            history.add(tunnel(works), false);
        }
        assert_eq!(history.loss(), Some(25));
        for _ in 0..10 {
            history.add(tunnel(true), false);
        }
        assert_eq!(history.loss(), Some(0));
    }
}
