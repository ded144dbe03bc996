use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::ids::PodUid;

const UNIT: u32 = 65_536;

fn uid(n: usize) -> PodUid {
    PodUid::try_from(format!("pod-{n}")).unwrap()
}

fn ids(slot: u32) -> UserNamespace {
    UserNamespace { first_host_id: slot * UNIT, length: UNIT }
}

/// Room for four pods, from 65536 on.
fn narrow() -> IdRange {
    IdRange::new(UNIT.into(), Some((UNIT, 4 * UNIT)), 4).unwrap()
}

#[test]
fn the_range_is_the_machines_or_all_but_the_lowest_ids() {
    use BadRange::*;
    const MANY: u32 = 110;
    let all = IdRange::new(UNIT.into(), None, MANY).unwrap();
    assert_eq!((all.slots(), all.slot(0), all.slot(65_534)), (65_535, ids(1), ids(65_535)));
    let wide = 1 << 20;
    assert_eq!(IdRange::new(wide, None, MANY).unwrap().slots(), 4095);
    for (case, per_pod, given, expected) in [
        ("given by the machine", 65_536, Some((131_072, 110 * UNIT)), Ok(110)),
        ("one pod too few", 65_536, Some((UNIT, 109 * UNIT)), Err(TooFew { slots: 109, max_pods: MANY })),
        ("the ids of the host itself", 65_536, Some((0, 200 * UNIT)), Err(First { first: 0, per_pod: UNIT })),
        ("out of step", 65_536, Some((100_000, 200 * UNIT)), Err(First { first: 100_000, per_pod: UNIT })),
        (
            "no whole number of pods",
            65_536,
            Some((UNIT, 200 * UNIT + 1)),
            Err(Length { length: 200 * UNIT + 1, per_pod: UNIT }),
        ),
        (
            "more than there are ids",
            65_536,
            Some((u32::MAX - UNIT + 1, 200 * UNIT)),
            Err(Length { length: 200 * UNIT, per_pod: UNIT }),
        ),
        ("less than a unit", 4096, None, Err(PerPod(4096))),
        ("none", 0, None, Err(PerPod(0))),
        ("no multiple of the unit", 100_000, None, Err(PerPod(100_000))),
        ("more than an id can be", 1 << 32, None, Err(PerPod(1 << 32))),
        ("half of all ids for one pod", 1 << 31, None, Err(TooFew { slots: 1, max_pods: MANY })),
    ] {
        assert_eq!(IdRange::new(per_pod, given, MANY).map(|r| r.slots()), expected, "{case}");
    }
}

#[test]
fn what_getsubids_prints_is_read() {
    assert_eq!(read_subids("0: kubelet 65536 2147483648\n"), Ok((65_536, 1 << 31)));
    for text in [
        "",
        "\n",
        "0: kubelet 65536",
        "0: kubelet 65536 65536 1",
        "0: kubelet x 65536",
        "0: kubelet 1 4294967296",
        "0: kubelet 65536 65536\n1: kubelet 131072 65536\n",
    ] {
        assert_eq!(read_subids(text), Err(BadRange::Unreadable(text.to_owned())));
    }
}

#[test]
fn the_record_is_the_kubelets() {
    let text = write_record(ids(2));
    let one = r#"[{"hostId":131072,"containerId":0,"length":65536}]"#;
    assert_eq!(text, format!(r#"{{"uidMappings":{one},"gidMappings":{one}}}"#));
    assert_eq!(read_record(text.as_bytes()), Ok(Some(ids(2))));
    assert_eq!(read_record(b""), Ok(None));
    for cut in 1..text.len() {
        let unreadable = matches!(read_record(&text.as_bytes()[..cut]), Err(BadRecord::Unreadable(_)));
        assert!(unreadable, "cut after {cut} bytes");
    }
}

#[test]
fn a_record_that_says_something_else_is_not_believed() {
    let mapping = |host: u32, container: u32, length: u32| {
        format!(r#"{{"hostId":{host},"containerId":{container},"length":{length}}}"#)
    };
    let record = |u: &str, g: &str| format!(r#"{{"uidMappings":[{u}],"gidMappings":[{g}]}}"#).into_bytes();
    let good = mapping(131_072, 0, UNIT);
    let shifted = mapping(131_072, 1, UNIT);
    let two = format!("{good},{good}");
    for (case, text, expected) in [
        ("two mappings", record(&two, &two), BadRecord::Count { uids: 2, gids: 2 }),
        ("none", record("", ""), BadRecord::Count { uids: 0, gids: 0 }),
        ("others for groups", record(&good, &mapping(65_536, 0, UNIT)), BadRecord::Differ),
        ("without root", record(&shifted, &shifted), BadRecord::Root),
        ("of nothing", record(&mapping(0, 0, 0), &mapping(0, 0, 0)), BadRecord::Root),
    ] {
        assert_eq!(read_record(&text), Err(expected), "{case}");
    }
    let foreign = br#"{"podUID": "x", "cpus": [1]}"#;
    assert!(matches!(read_record(foreign), Err(BadRecord::Unreadable(_))));
}

#[test]
fn a_file_that_contradicts_the_node_or_another_pod_is_not_taken() {
    let mut all = Allocator::new(narrow());
    let restore = |all: &mut Allocator, n, ids| all.restore(&uid(n), write_record(ids).as_bytes());
    assert_eq!(restore(&mut all, 1, ids(2)), Ok(()));
    assert_eq!(restore(&mut all, 1, ids(2)), Ok(()), "once more");
    for bad in [
        ids(0),
        ids(5),
        UserNamespace { length: 2 * UNIT, ..ids(1) },
        UserNamespace { first_host_id: 65_537, length: UNIT },
    ] {
        assert_eq!(restore(&mut all, 2, bad), Err(BadRecord::Foreign(bad)));
    }
    let other = uid(1).to_string();
    assert_eq!(restore(&mut all, 2, ids(2)), Err(BadRecord::Taken { ids: ids(2), other }));
    assert_eq!(all.held(&uid(2)), None);
    assert_ne!(all.assign(&uid(2)), Ok(ids(2)));
}

#[test]
fn what_lives_keeps_its_ids_and_nobody_else_gets_any_of_them() {
    let mut all = Allocator::new(narrow());
    // From before the range was changed: it touches the first two slots, and its end lies within the second.
    let living = UserNamespace { first_host_id: 1000, length: 3 * UNIT - 2000 };
    assert!(all.adopt(&uid(0), living));
    assert!(!all.adopt(&uid(0), living), "that is no news");
    let got: BTreeSet<u32> = [1, 2].map(|n| all.assign(&uid(n)).unwrap().first_host_id / UNIT).into();
    assert_eq!(got, [3, 4].into());
    assert_eq!(all.assign(&uid(3)), Err(NoFreeIds));
    assert_eq!(all.assign(&uid(0)), Ok(living));
    assert!(all.release(&uid(0)));
    assert!(all.assign(&uid(3)).is_ok() && all.assign(&uid(4)).is_ok());
}

#[test]
fn a_pod_gets_other_ids_than_the_one_before_it() {
    let range = IdRange::new(UNIT.into(), None, 110).unwrap();
    let mut all = Allocator::new(range);
    let first = all.assign(&uid(1)).unwrap();
    all.release(&uid(1));
    assert_ne!(all.assign(&uid(2)).unwrap(), first);
}

#[test]
fn handlers_that_cannot_are_named_in_the_kubelets_words() {
    let known = [("", true), ("kata", false), ("runc", true)];
    assert_eq!(check_handler("", known), Ok(()));
    assert_eq!(check_handler("runc", known), Ok(()));
    let plain = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    let kata =
        r#"can't set `spec.hostUsers: false`, RuntimeClass handler "kata" does not support user namespaces"#;
    assert_eq!(check_handler("kata", known), Err(kata.to_owned()));
    assert_eq!(check_handler("kata", []), Err(kata.to_owned()), "too old to report its handlers");
    assert_eq!(check_handler("", []), Err(plain.to_owned()));
    assert_eq!(check_handler("", [("", false)]), Err(plain.to_owned()));
    assert_eq!(
        check_handler("kata", [("", true)]),
        Err(format!(r#"{kata}: the handler "kata" is not known"#))
    );
}

/// What may happen to the pods of a node and to their files.
#[derive(Debug, Clone)]
enum Event {
    /// A sandbox is made, with the pod's ids; the file was written before.
    Start(usize),
    /// The sandbox dies, and nothing else.
    Die(usize),
    /// Everything of the pod goes.
    Gone(usize),
    Truncate(usize, usize),
    Overwrite(usize, Vec<u8>),
    /// One pod's file lies in the directory of another.
    Copy(usize, usize),
    Lose(usize),
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let pod = 0..6usize;
    prop_oneof![
        4 => pod.clone().prop_map(Event::Start),
        2 => pod.clone().prop_map(Event::Die),
        2 => pod.clone().prop_map(Event::Gone),
        1 => (pod.clone(), 0..80usize).prop_map(|(n, cut)| Event::Truncate(n, cut)),
        1 => (pod.clone(), proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(n, b)| Event::Overwrite(n, b)),
        1 => (pod.clone(), pod.clone()).prop_map(|(from, to)| Event::Copy(from, to)),
        1 => pod.prop_map(Event::Lose),
        2 => Just(Event::Restart),
    ]
}

struct World {
    all: Allocator,
    files: BTreeMap<usize, Vec<u8>>,
    living: BTreeMap<usize, UserNamespace>,
}

impl World {
    fn happen(&mut self, event: Event) {
        match event {
            // A pod whose sandbox lives makes no other.
            Event::Start(n) if self.living.contains_key(&n) => {}
            Event::Start(n) => {
                let before = self.all.held(&uid(n));
                let Ok(got) = self.all.assign(&uid(n)) else {
                    assert!(self.all.held.len() >= 4, "ids were refused while some were free");
                    return;
                };
                assert!(before.is_none_or(|b| b == got), "a pod's ids changed");
                self.files.insert(n, write_record(got).into_bytes());
                self.living.insert(n, got);
            }
            Event::Die(n) => drop(self.living.remove(&n)),
            Event::Gone(n) => {
                self.living.remove(&n);
                self.files.remove(&n);
                self.all.release(&uid(n));
            }
            Event::Truncate(n, cut) => {
                if let Some(file) = self.files.get_mut(&n) {
                    file.truncate(cut);
                }
            }
            Event::Overwrite(n, bytes) => drop(self.files.insert(n, bytes)),
            Event::Copy(from, to) => {
                if let Some(file) = self.files.get(&from).cloned() {
                    self.files.insert(to, file);
                }
            }
            Event::Lose(n) => drop(self.files.remove(&n)),
            Event::Restart => self.restart(),
        }
    }

    /// What lives is heard of before the files are, as the agent does it.
    fn restart(&mut self) {
        self.all = Allocator::new(narrow());
        for (n, living) in &self.living {
            self.all.adopt(&uid(*n), *living);
        }
        for (n, file) in &self.files {
            if !self.living.contains_key(n) {
                let _ = self.all.restore(&uid(*n), file);
            }
        }
    }

    fn check(&self) {
        let held: Vec<_> = self.all.held.values().collect();
        for (i, a) in held.iter().enumerate() {
            assert!(narrow().has(**a), "{a} is not the node's to give");
            assert!(held[i + 1..].iter().all(|b| !a.overlaps(**b)), "two pods have ids in common: {held:?}");
        }
        for (n, living) in &self.living {
            assert_eq!(self.all.held(&uid(*n)), Some(*living), "the ids of a pod that lives were lost");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_two_pods_share_ids_and_all_are_given_back(events in proptest::collection::vec(event(), 0..60)) {
        let mut world =
            World { all: Allocator::new(narrow()), files: BTreeMap::new(), living: BTreeMap::new() };
        for event in events {
            world.happen(event);
            world.check();
        }
        for n in 0..6 {
            world.happen(Event::Gone(n));
        }
        prop_assert!(world.all.held.is_empty());
        for n in 10..14 {
            prop_assert!(world.all.assign(&uid(n)).is_ok(), "ids were not given back");
        }
    }

    #[test]
    fn any_file_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut all = Allocator::new(narrow());
        if all.restore(&uid(0), &bytes).is_ok() && let Some(ids) = all.held(&uid(0)) {
            prop_assert!(narrow().has(ids));
        }
    }
}
