use std::collections::BTreeMap;

use jiff::SignedDuration;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn spec(names: &[&str]) -> Vec<Volume> {
    // Each shows the Secret of its own name.
    let volume = |name: &&str| json!({"name": name, "secret": {"secretName": name}});
    names.iter().map(|name| serde_json::from_value(volume(name)).unwrap()).collect()
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_000 + millis).unwrap()
}

fn prepared(volume: &str, refresh_at: Option<Timestamp>) -> VolumeOutcome {
    let place = VolumePlace::Host(format!("/v/{volume}"));
    VolumeOutcome::Prepared { volume: volume.into(), place, refresh_at }
}

fn failed(volume: &str) -> VolumeOutcome {
    VolumeOutcome::Failed { volume: volume.into(), message: format!("{volume} failed") }
}

fn begun() -> PodVolumes {
    let mut volumes = PodVolumes::default();
    volumes.apply(VolumeOutcome::Directories { path: "/pod".into() }, at(0));
    volumes
}

fn planned(prepare: &[&str], refresh: &[&str], release: &[&str]) -> VolumePlan {
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    VolumePlan {
        directories: false,
        prepare: owned(prepare),
        refresh: owned(refresh),
        release: owned(release),
    }
}

#[test]
fn each_volume_is_planned_for_itself() {
    let nothing = planned(&[], &[], &[]);
    type Case<'a> = (&'a str, fn(&mut PodVolumes), i64, VolumePlan, VolumesState);
    let failure = || VolumesState::Failed("b failed".into());
    let cases: Vec<Case<'_>> = vec![
        ("at first all are due, in order", |_| {}, 0, planned(&["b", "a"], &[], &[]), VolumesState::Pending),
        (
            "what is good is left alone",
            |v| {
                v.apply(prepared("b", None), at(0));
                v.apply(prepared("a", None), at(0));
            },
            1_000_000,
            nothing.clone(),
            VolumesState::Ready,
        ),
        (
            "a failure waits, and the other is not touched",
            |v| {
                v.apply(failed("b"), at(0));
                v.apply(prepared("a", None), at(0));
            },
            499,
            nothing.clone(),
            failure(),
        ),
        (
            "then it alone is tried again, and is still called failed",
            |v| {
                v.apply(failed("b"), at(0));
                v.apply(prepared("a", None), at(0));
            },
            500,
            planned(&["b"], &[], &[]),
            failure(),
        ),
        (
            "a second failure waits twice as long",
            |v| {
                v.apply(failed("b"), at(0));
                v.apply(failed("b"), at(500));
                v.apply(prepared("a", None), at(0));
            },
            1499,
            nothing.clone(),
            failure(),
        ),
        (
            "what it shows appears: at once",
            |v| {
                v.apply(failed("b"), at(0));
                v.apply(prepared("a", None), at(0));
                v.invalidate(&spec(&["b", "a"]), Change::Secret("b"));
            },
            1,
            planned(&["b"], &[], &[]),
            failure(),
        ),
        (
            "a refresh falls due",
            |v| {
                v.apply(prepared("b", Some(at(100))), at(0));
                v.apply(prepared("a", Some(at(101))), at(0));
            },
            100,
            planned(&[], &["b"], &[]),
            VolumesState::Pending,
        ),
        (
            "a refresh that fails leaves the pod as it is",
            |v| {
                v.apply(prepared("b", Some(at(100))), at(0));
                v.apply(prepared("a", None), at(0));
                v.apply(failed("b"), at(100));
            },
            200,
            nothing.clone(),
            VolumesState::Ready,
        ),
        (
            "a token that is overdue already is not asked for at once",
            |v| {
                v.apply(prepared("b", Some(at(-5000))), at(0));
                v.apply(prepared("a", None), at(0));
            },
            499,
            nothing.clone(),
            VolumesState::Ready,
        ),
        (
            "everything that is good is prepared again",
            |v| {
                v.apply(prepared("b", None), at(0));
                v.apply(failed("a"), at(0));
                v.recheck();
            },
            1,
            VolumePlan { directories: true, ..planned(&[], &["b"], &[]) },
            VolumesState::Failed("a failed".into()),
        ),
        (
            "what the spec does not name any more is released",
            |v| {
                v.apply(prepared("b", None), at(0));
                v.apply(prepared("a", None), at(0));
                v.apply(prepared("old", None), at(0));
            },
            0,
            planned(&[], &[], &["old"]),
            VolumesState::Pending,
        ),
        (
            "without directories nothing is tried",
            |v| {
                *v = PodVolumes::default();
                v.apply(VolumeOutcome::NoDirectories { message: "b failed".into() }, at(0));
            },
            499,
            nothing,
            failure(),
        ),
    ];
    for (what, prepare, now, plan, overall) in cases {
        let mut volumes = begun();
        prepare(&mut volumes);
        let spec = spec(&["b", "a"]);
        assert_eq!(volumes.plan(&spec, at(now)), plan, "{what}");
        assert_eq!(volumes.overall(&spec, at(now)), overall, "{what}");
    }
}

#[test]
fn the_directories_come_first_even_without_volumes() {
    let mut volumes = PodVolumes::default();
    assert_eq!(volumes.overall(&[], at(0)), VolumesState::Pending);
    assert!(volumes.plan(&[], at(0)).directories);
    volumes.apply(VolumeOutcome::Directories { path: "/pod".into() }, at(0));
    assert_eq!(volumes.overall(&[], at(0)), VolumesState::Ready);
    assert!(volumes.paths().is_empty(), "the directories are no volume");
}

#[derive(Debug, Clone)]
enum Event {
    /// A round is carried out; the number says how each volume fares.
    Round(u8),
    Passes(u32),
    Changed(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => any::<u8>().prop_map(Event::Round),
        3 => prop_oneof![0..2000u32, 0..200_000u32].prop_map(Event::Passes),
        1 => (0..3usize).prop_map(Event::Changed),
    ]
}

proptest! {
    /// Whatever happens in whatever order: an attempt follows a failure no sooner than its back-off, unless what the
    /// volume shows has changed; nothing is due in the past; and what is due comes.
    #[test]
    fn attempts_are_never_closer_than_their_back_off(events in proptest::collection::vec(event(), 1..60)) {
        let names = ["a", "b", "c"];
        let spec = spec(&names);
        let mut volumes = begun();
        let mut clock = 0i64;
        // By volume: when it failed last, and for the how many-th time in a row.
        let mut failures: BTreeMap<String, (i64, u32)> = BTreeMap::new();
        for event in events {
            match event {
                Event::Passes(millis) => clock += i64::from(millis),
                Event::Changed(which) => {
                    volumes.invalidate(&spec, Change::Secret(names[which]));
                    if let Some(failure) = failures.get_mut(names[which]) {
                        failure.0 = i64::MIN;
                    }
                    prop_assert!(volumes.plan(&spec, at(clock)).prepares(names[which]));
                }
                Event::Round(fate) => {
                    let plan = volumes.plan(&spec, at(clock));
                    for (index, name) in names.iter().enumerate().filter(|(_, n)| plan.prepares(n)) {
                        if let Some((failed_at, times)) = failures.get(*name) {
                            let pause = (500i64 << (times - 1).min(20)).min(120_000);
                            prop_assert!(failed_at.saturating_add(pause) <= clock, "{name} too early");
                        }
                        // Good, good for a while, overdue already, failed.
                        let (outcome, bad) = match (fate >> (2 * index)) & 3 {
                            0 => (prepared(name, None), false),
                            1 => (prepared(name, Some(at(clock + 60_000))), false),
                            2 => (prepared(name, Some(at(clock - 1))), true),
                            _ => (failed(name), true),
                        };
                        volumes.apply(outcome, at(clock));
                        if bad {
                            let times = failures.get(*name).map_or(0, |(_, times)| *times);
                            failures.insert((*name).to_owned(), (clock, times + 1));
                        } else {
                            failures.remove(*name);
                        }
                    }
                    prop_assert!(volumes.plan(&spec, at(clock)).is_empty(), "a round leaves nothing due");
                }
            }
            volumes.review(&spec, at(clock));
            prop_assert_eq!(volumes.state == VolumesState::Ready, {
                let all_there = names.iter().all(|name| volumes.paths().contains_key(*name));
                all_there && volumes.plan(&spec, at(clock)).is_empty()
            });
            if let Some(next) = volumes.next_review() {
                prop_assert!(next > at(clock));
                prop_assert!(!volumes.plan(&spec, next).is_empty(), "woken for nothing");
                let before = next - SignedDuration::from_millis(1);
                if volumes.plan(&spec, at(clock)).is_empty() {
                    prop_assert!(volumes.plan(&spec, before).is_empty(), "woken too late");
                }
            } else {
                prop_assert!(failures.values().all(|(failed_at, _)| *failed_at != clock), "a failure is forgotten");
            }
        }
    }
}
