//! How much processor time is used a second. That takes two samples; the first one is what the last question left.

use std::collections::HashMap;

/// Two questions within this time get the same answer: the difference would be noise.
const SHORTEST_NANOS: i128 = 1_000_000_000;
/// A sample older than this says nothing about now.
const LONGEST_NANOS: i128 = 600_000_000_000;

/// The last sample of everything that was asked about lately. Holds no more than what was in the last two rounds.
#[derive(Debug, Default)]
pub struct Rates {
    samples: HashMap<String, Sample>,
    round: u64,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at_nanos: i128,
    used: u64,
    rate: Option<u64>,
    round: u64,
}

impl Rates {
    /// Begins a round of measuring; what was not seen in the one before is forgotten.
    pub fn begin(&mut self) {
        let last = self.round;
        self.samples.retain(|_, sample| sample.round >= last);
        self.round += 1;
    }

    /// Billionths of a processor, from nanoseconds used up to a moment.
    pub fn observe(&mut self, what: &str, at_nanos: i128, used: u64) -> Option<u64> {
        let round = self.round;
        let Some(sample) = self.samples.get_mut(what) else {
            self.samples.insert(what.to_owned(), Sample { at_nanos, used, rate: None, round });
            return None;
        };
        sample.round = round;
        let passed = at_nanos - sample.at_nanos;
        if (0..SHORTEST_NANOS).contains(&passed) && used >= sample.used {
            return sample.rate;
        }
        // After a jump of the clock, or when the counter began anew, there is nothing to compare with.
        let comparable = (SHORTEST_NANOS..=LONGEST_NANOS).contains(&passed);
        let rate = comparable.then(|| used.checked_sub(sample.used)).flatten();
        let rate = rate.and_then(|d| u64::try_from(i128::from(d) * 1_000_000_000 / passed).ok());
        *sample = Sample { at_nanos, used, rate, round };
        rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    #[test]
    fn a_rate_takes_two_samples() {
        let mut rates = Rates::default();
        rates.begin();
        assert_eq!(rates.observe("a", 0, 100), None);
        rates.begin();
        assert_eq!(rates.observe("a", 2 * SECOND, 1_000_000_100), Some(500_000_000));
        rates.begin();
        assert_eq!(rates.observe("a", 2 * SECOND + 5, 1_000_000_900), Some(500_000_000), "too soon to tell");
        assert_eq!(rates.observe("a", SECOND, 1_000_000_900), None, "the clock went back");
        assert_eq!(rates.observe("a", 3 * SECOND, 5), None, "the counter began anew");
        assert_eq!(rates.observe("a", 3000 * SECOND, 500), None, "too long ago");
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut rates = Rates::default();
        for round in 0..1000 {
            rates.begin();
            rates.observe(&format!("container {round}"), round, 0);
        }
        assert!(rates.samples.len() <= 2, "{}", rates.samples.len());
    }
}
