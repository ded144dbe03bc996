//! Which peers are probed when. The number of probes a second is limited, so that probing costs the same with fifty peers
//! and with thousands; with more peers each waits longer for its turn. Pure.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// The most peers probed at once, at most once a second.
pub const BATCH: usize = 64;
const PACE: Duration = Duration::from_secs(1);
/// A peer with a problem is probed again after this, until the problem is confirmed or gone.
const RETRY_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Schedule<K> {
    every: Duration,
    /// This peer and those before it had their turn.
    cursor: Option<K>,
    began: Option<Instant>,
    retries: VecDeque<(Instant, K)>,
    /// The keys in `retries`.
    queued: BTreeSet<K>,
}

impl<K: Ord + Clone> Schedule<K> {
    pub fn new(every: Duration) -> Self {
        Schedule { every, cursor: None, began: None, retries: VecDeque::new(), queued: BTreeSet::new() }
    }

    /// The peers to probe now, and when to call again. `turn` returns the next peers in order, after a given one.
    pub fn next(
        &mut self,
        now: Instant,
        turn: impl FnOnce(Option<&K>, usize) -> Vec<K>,
    ) -> (Vec<K>, Instant) {
        let mut batch = Vec::new();
        // Half of a batch at most, so that many problems do not starve the other peers.
        while batch.len() < BATCH / 2 && self.retries.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, key)) = self.retries.pop_front() {
                self.queued.remove(&key);
                batch.push(key);
            }
        }
        let resting = self.cursor.is_none() && self.began.is_some_and(|began| now < began + self.every);
        if !resting {
            if self.cursor.is_none() {
                self.began = Some(now);
            }
            let room = BATCH - batch.len();
            let turn = turn(self.cursor.as_ref(), room);
            // A short batch: all had their turn.
            self.cursor = turn.last().filter(|_| turn.len() == room).cloned();
            let fresh = |key: &K| !self.queued.contains(key) && !batch.contains(key);
            let turn: Vec<K> = turn.into_iter().filter(fresh).collect();
            batch.extend(turn);
        }
        let next_turn = match (&self.cursor, self.began) {
            (None, Some(began)) => began + self.every,
            _ => now,
        };
        let next = self.retries.front().map_or(next_turn, |(due, _)| next_turn.min(*due));
        (batch, next.max(now + PACE.min(self.every)))
    }

    /// A probe of this peer found a problem.
    pub fn retry_soon(&mut self, key: K, now: Instant) {
        if self.queued.insert(key.clone()) {
            self.retries.push_back((now + RETRY_AFTER.min(self.every), key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(schedule: &mut Schedule<u32>, peers: u32, now: Instant) -> (Vec<u32>, Instant) {
        schedule.next(now, |after, room| (after.map_or(0, |at| at + 1)..peers).take(room).collect())
    }

    #[test]
    fn a_few_peers_are_probed_together_at_the_configured_pace() {
        let now = Instant::now();
        let mut schedule = Schedule::new(Duration::from_secs(10));
        assert_eq!(ask(&mut schedule, 3, now), (vec![0, 1, 2], now + Duration::from_secs(10)));
        let later = now + Duration::from_secs(4);
        assert_eq!(ask(&mut schedule, 3, later), (vec![], now + Duration::from_secs(10)));
        let next = now + Duration::from_secs(10);
        assert_eq!(ask(&mut schedule, 3, next), (vec![0, 1, 2], next + Duration::from_secs(10)));
    }

    #[test]
    fn thousands_are_probed_in_turn_and_never_more_than_a_batch_in_a_second() {
        let begin = Instant::now();
        let mut now = begin;
        let mut schedule = Schedule::new(Duration::from_secs(10));
        let mut seen = Vec::new();
        while seen.len() < 5000 {
            let (batch, next) = ask(&mut schedule, 5000, now);
            assert!(batch.len() <= BATCH && next >= now + PACE);
            seen.extend(batch);
            now = next;
        }
        assert_eq!(seen, (0..5000).collect::<Vec<_>>());
        assert_eq!((now - begin).as_secs(), 79);
        assert_eq!(ask(&mut schedule, 5000, now).0.first(), Some(&0), "and again from the first");
    }

    #[test]
    fn a_peer_with_a_problem_is_probed_again_soon_and_does_not_delay_the_others() {
        let now = Instant::now();
        let mut schedule = Schedule::new(Duration::from_secs(10));
        let (first, next) = ask(&mut schedule, 5000, now);
        for key in &first {
            schedule.retry_soon(*key, now);
            schedule.retry_soon(*key, now);
        }
        assert_eq!(ask(&mut schedule, 5000, next).0, (64..128).collect::<Vec<_>>());
        let (batch, _) = ask(&mut schedule, 5000, now + RETRY_AFTER);
        assert_eq!(batch.len(), BATCH);
        assert_eq!((&batch[..32], batch[32]), (&first[..32], 128));
    }
}
