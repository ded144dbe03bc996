//! Which events are worth the server's while: repeats are counted, similar ones combined, and chatter cut off.
//!
//! The numbers are the kubelet's. Pure: the time is passed in.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use jiff::Timestamp;

use super::{EventType, ObjectRef};

/// An object may cause this many events at once, and one more every five minutes.
const SPAM_BURST: f64 = 25.0;
const SPAM_REFILL_PER_SECOND: f64 = 1.0 / 300.0;
/// This many different messages of one reason within the interval are combined into one event.
const SIMILAR: usize = 10;
const SIMILAR_SECONDS: i64 = 600;
/// What is remembered at most, of each kind. When it is full the oldest goes.
const REMEMBERED: usize = 1024;

/// What to do about an occurrence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Send as a new event, with this message.
    Create { key: EventKey, message: String },
    /// Count up the event that was sent before.
    Count { key: EventKey, name: String, count: i32, message: String },
    /// Too much about this object already.
    Drop,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct EventKey {
    object: ObjectRef,
    type_: EventType,
    reason: String,
    /// None for the combined event of many similar ones.
    message: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Correlator {
    spam: Recent<(ObjectRef, EventType), Bucket>,
    similar: Recent<(ObjectRef, EventType, String), Similar>,
    sent: Recent<EventKey, Sent>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Timestamp,
}

#[derive(Debug)]
struct Similar {
    messages: HashSet<String>,
    at: Timestamp,
}

#[derive(Debug)]
struct Sent {
    name: String,
    count: i32,
}

impl Correlator {
    pub(super) fn judge(
        &mut self,
        object: &ObjectRef,
        type_: EventType,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) -> Verdict {
        // Similar ones are combined before spam is counted, as the kubelet does: a combined event is cheap.
        let (key, message) = self.combine(object, type_, reason, message, now);
        if !self.admit(object, type_, now) {
            return Verdict::Drop;
        }
        match self.sent.get(&key) {
            Some(sent) => {
                sent.count += 1;
                Verdict::Count { name: sent.name.clone(), count: sent.count, key, message }
            }
            None => Verdict::Create { key, message },
        }
    }

    /// The event of this key exists at the server under this name, and has been counted so far.
    pub(super) fn sent(&mut self, key: EventKey, name: String, count: i32) {
        self.sent.insert(key, Sent { name, count });
    }

    /// The server forgot the event (they live an hour): the next one is new.
    pub(super) fn forget(&mut self, key: &EventKey) {
        self.sent.remove(key);
    }

    fn combine(
        &mut self,
        object: &ObjectRef,
        type_: EventType,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) -> (EventKey, String) {
        let group = (object.without_field(), type_, reason.to_owned());
        let fresh = || Similar { messages: HashSet::new(), at: now };
        let similar = self.similar.get_or_insert_with(group, fresh);
        if now.duration_since(similar.at).as_secs() > SIMILAR_SECONDS {
            *similar = fresh();
        }
        similar.at = now;
        if similar.messages.len() < SIMILAR {
            similar.messages.insert(message.to_owned());
        }
        let key = |object: ObjectRef, message| EventKey { object, type_, reason: reason.to_owned(), message };
        if similar.messages.len() < SIMILAR {
            return (key(object.clone(), Some(message.to_owned())), message.to_owned());
        }
        (key(object.without_field(), None), format!("(combined from similar events): {message}"))
    }

    fn admit(&mut self, object: &ObjectRef, type_: EventType, now: Timestamp) -> bool {
        let bucket = self
            .spam
            .get_or_insert_with((object.without_field(), type_), || Bucket { tokens: SPAM_BURST, at: now });
        let seconds = now.duration_since(bucket.at).as_secs_f64().max(0.0);
        bucket.tokens = (bucket.tokens + seconds * SPAM_REFILL_PER_SECOND).min(SPAM_BURST);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }
}

/// A map that forgets what was not touched for longest once it is full.
#[derive(Debug)]
struct Recent<K, V> {
    entries: HashMap<K, (u64, V)>,
    clock: u64,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), clock: 0 }
    }
}

impl<K: Hash + Eq + Clone, V> Recent<K, V> {
    fn get(&mut self, key: &K) -> Option<&mut V> {
        self.clock += 1;
        let (touched, value) = self.entries.get_mut(key)?;
        *touched = self.clock;
        Some(value)
    }

    fn insert(&mut self, key: K, value: V) {
        self.clock += 1;
        self.make_room(&key);
        self.entries.insert(key, (self.clock, value));
    }

    fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.clock += 1;
        self.make_room(&key);
        let entry = self.entries.entry(key).or_insert_with(|| (0, make()));
        entry.0 = self.clock;
        &mut entry.1
    }

    fn remove(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// Drops the older half at once, so that the search for it is rare.
    fn make_room(&mut self, key: &K) {
        if self.entries.len() < REMEMBERED || self.entries.contains_key(key) {
            return;
        }
        let mut touched: Vec<u64> = self.entries.values().map(|(touched, _)| *touched).collect();
        touched.sort_unstable();
        let median = touched[touched.len() / 2];
        self.entries.retain(|_, (touched, _)| *touched > median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> ObjectRef {
        ObjectRef {
            kind: "Pod".into(),
            namespace: "ns".into(),
            name: name.into(),
            uid: "u".into(),
            ..ObjectRef::default()
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_same_thing_again_is_counted_not_repeated() {
        let mut correlator = Correlator::default();
        let Verdict::Create { key, .. } =
            correlator.judge(&pod("a"), EventType::Normal, "Pulled", "m", at(0))
        else {
            panic!("the first is new");
        };
        correlator.sent(key.clone(), "a.1".into(), 1);
        for count in [2, 3] {
            let verdict = correlator.judge(&pod("a"), EventType::Normal, "Pulled", "m", at(1));
            let expected =
                Verdict::Count { key: key.clone(), name: "a.1".into(), count, message: "m".into() };
            assert_eq!(verdict, expected);
        }
        assert!(matches!(
            correlator.judge(&pod("b"), EventType::Normal, "Pulled", "m", at(1)),
            Verdict::Create { .. }
        ));
        correlator.forget(&key);
        assert!(matches!(
            correlator.judge(&pod("a"), EventType::Normal, "Pulled", "m", at(1)),
            Verdict::Create { .. }
        ));
    }

    #[test]
    fn an_object_that_never_stops_is_cut_off_after_25_and_heard_again_every_five_minutes() {
        let mut correlator = Correlator::default();
        let mut judge = |second| correlator.judge(&pod("a"), EventType::Warning, "BackOff", "m", at(second));
        let passed = (0..100).filter(|_| judge(0) != Verdict::Drop).count();
        assert_eq!(passed, 25);
        assert_eq!(judge(299), Verdict::Drop);
        assert_ne!(judge(301), Verdict::Drop);
        assert_eq!(judge(301), Verdict::Drop);
    }

    #[test]
    fn ten_different_messages_of_one_reason_become_one_event() {
        let mut correlator = Correlator::default();
        let mut judge = |n: i32, second| {
            correlator.judge(&pod("a"), EventType::Warning, "Failed", &format!("try {n}"), at(second))
        };
        for n in 1..10 {
            assert!(matches!(judge(n, 0), Verdict::Create { message, .. } if message == format!("try {n}")));
        }
        let Verdict::Create { key: tenth, message } = judge(10, 0) else { panic!("not sent") };
        assert_eq!(message, "(combined from similar events): try 10");
        let Verdict::Create { key: eleventh, .. } = judge(11, 0) else { panic!("not sent") };
        assert_eq!(tenth, eleventh, "they share one event at the server");
        assert!(
            matches!(judge(12, 700), Verdict::Create { message, .. } if message == "try 12"),
            "a quiet time ends it"
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut correlator = Correlator::default();
        for n in 0..10_000 {
            correlator.judge(&pod(&n.to_string()), EventType::Normal, "r", "m", at(0));
        }
        assert!(correlator.spam.entries.len() <= REMEMBERED);
        assert!(correlator.similar.entries.len() <= REMEMBERED);
    }
}
