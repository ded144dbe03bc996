use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use proptest::prelude::*;
use serde_json::json;

use super::entry::Stamp;
use super::rotation::{self, Growth};
use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().expect("time")
}

const LOG: &str = "\
2026-01-02T03:04:05.1Z stdout F one\n\
2026-01-02T03:04:06.000000002Z stderr P two, \n\
2026-01-02T03:04:06.000000003Z stderr F still two\n\
not an entry\n\
2026-01-02T03:04:07+00:00 stdout F:x three\n\
2026-01-02T03:04:08.5Z stdout F \n\
2026-01-02T03:04:09Z stdin F never\n";

/// The answer must not depend on how the file was cut into blocks.
fn shown(filter: &Filter, log: &[u8], block: usize) -> Vec<u8> {
    let (mut filter, mut out) = (filter.clone(), Vec::new());
    for piece in log.chunks(block) {
        filter.push(piece, &mut out);
    }
    filter.end_of_file(&mut out);
    out
}

fn check(name: &str, filter: Filter, log: &str, expected: &str) {
    for block in [1, 2, 3, 7, 64, 100_000] {
        let out = shown(&filter, log.as_bytes(), block);
        assert_eq!(String::from_utf8_lossy(&out), expected, "{name}, in blocks of {block}");
    }
}

fn plain() -> Filter {
    Filter::new(None, false, Stream::All, None)
}

#[test]
fn what_is_shown_of_a_log() {
    check("everything", plain(), LOG, "one\ntwo, still two\nthree\n\n");
    let stamps = "2026-01-02T03:04:05.100000000Z one\n2026-01-02T03:04:06.000000002Z two, still two\n\
                  2026-01-02T03:04:07.000000000+00:00 three\n2026-01-02T03:04:08.500000000Z \n";
    check("time stamps once a line", Filter::new(None, true, Stream::All, None), LOG, stamps);
    check("stdout", Filter::new(None, false, Stream::Stdout, None), LOG, "one\nthree\n\n");
    check("stderr", Filter::new(None, false, Stream::Stderr, None), LOG, "two, still two\n");
    let since = Some(at("2026-01-02T03:04:07Z"));
    check("since, inclusive", Filter::new(since, false, Stream::All, None), LOG, "three\n\n");
    check("limited", Filter::new(None, false, Stream::All, Some(6)), LOG, "one\ntw");
    check("limited by a time stamp", Filter::new(None, true, Stream::All, Some(10)), LOG, "2026-01-02");
    check("three entries", plain().at_most(3), LOG, "one\ntwo, still two\n");
    check("an unfinished line", plain(), "2026-01-02T03:04:05Z stdout F half", "half");
    check("an unfinished head", plain(), "2026-01-02T03:04:05Z stdo", "");
    check("an empty log", plain(), "", "");
}

#[test]
fn bytes_that_are_no_text_pass_as_they_are() {
    let log = b"2026-01-02T03:04:05Z stdout F \xff\x00\xfe\r\n".as_slice();
    assert_eq!(shown(&plain(), log, 5), b"\xff\x00\xfe\r\n");
}

#[test]
fn a_line_of_any_length_is_not_gathered() {
    let (mut filter, mut out, mut total) = (plain(), Vec::new(), 0);
    filter.push(b"2026-01-02T03:04:05Z stdout F ", &mut out);
    let block = vec![b'x'; 64 << 10];
    for _ in 0..1024 {
        out.clear();
        filter.push(&block, &mut out);
        total += out.len();
        assert!(out.capacity() <= 2 * block.len());
    }
    assert_eq!(total, 64 << 20);
    out.clear();
    // And without a head there is nothing to gather either.
    let mut filter = plain();
    for _ in 0..1024 {
        filter.push(&block, &mut out);
    }
    filter.push(b"\n2026-01-02T03:04:05Z stdout F after\n", &mut out);
    assert_eq!(out, b"after\n");
}

proptest! {
    #[test]
    fn a_stamp_is_the_moment_it_says(seconds in -60_000_000_000i64..200_000_000_000, nanos in 0i32..1_000_000_000) {
        let moment = Timestamp::new(seconds, nanos).expect("moment");
        let text = moment.to_string();
        let stamp = Stamp::parse(text.as_bytes()).expect("stamp");
        prop_assert_eq!((stamp.seconds, stamp.nanos), (seconds, nanos.unsigned_abs()));
        let mut out = Vec::new();
        stamp.write(&mut out);
        prop_assert_eq!(Stamp::parse(&out).expect("again").seconds, seconds);
    }

    #[test]
    fn any_bytes_in_any_blocks_are_shown_alike(log in prop::collection::vec(any::<u8>(), 0..400), block in 1usize..50) {
        prop_assert_eq!(shown(&plain(), &log, block), shown(&plain(), &log, 1000));
    }
}

#[test]
fn a_zone_shifts_the_moment() {
    let stamp = Stamp::parse(b"2026-01-02T03:04:05.5+02:30").expect("stamp");
    assert_eq!(stamp.seconds, at("2026-01-02T00:34:05Z").as_second());
    for bad in ["", "2026-01-02", "2026-13-02T03:04:05Z", "2026-01-02T03:04:05", "2026-01-02T03:04:05.Z", "x"]
    {
        assert_eq!(Stamp::parse(bad.as_bytes()), None, "{bad}");
    }
}

fn request(query: &[(&str, &str)]) -> Result<LogRequest, Refusal> {
    let get = |name: &str| query.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
    LogRequest::parse(get, at("2026-01-02T03:04:05Z"))
}

#[test]
fn a_query_is_read_as_the_kubelet_reads_it() {
    let all =
        [("follow", "true"), ("previous", "1"), ("timestamps", ""), ("limitBytes", "10"), ("tailLines", "0")];
    let read = request(&all).expect("query");
    assert!(read.follow && read.previous && read.timestamps);
    assert_eq!((read.limit, read.tail, read.stream), (Some(10), Some(0), Stream::All));
    assert_eq!(request(&[("follow", "False"), ("unknown", "x")]), Ok(LogRequest::default()));
    assert_eq!(request(&[("sinceSeconds", "5")]).expect("ago").since, Some(at("2026-01-02T03:04:00Z")));
    let time = request(&[("sinceTime", "2026-01-02T05:04:05+02:00")]).expect("time");
    assert_eq!(time.since, Some(at("2026-01-02T03:04:05Z")));
    assert_eq!(request(&[("tail", "7")]).expect("old").tail, Some(7));
    assert_eq!(request(&[("tail", "all"), ("tailLines", "7")]).expect("old").tail, None);
    assert_eq!(request(&[("stream", "Stderr")]).expect("stream").stream, Stream::Stderr);
    for unreadable in [[("tailLines", "x")], [("sinceTime", "yesterday")], [("limitBytes", "1.5")]] {
        assert_eq!(request(&unreadable), Err(Refusal::Unreadable), "{unreadable:?}");
    }
    for invalid in [
        &[("tailLines", "-1")][..],
        &[("limitBytes", "0")],
        &[("sinceSeconds", "0")],
        &[("sinceSeconds", "1"), ("sinceTime", "2026-01-02T03:04:05Z")],
        &[("stream", "stdout")],
        &[("stream", "Stdout"), ("tailLines", "1")],
    ] {
        assert_eq!(request(invalid), Err(Refusal::Invalid), "{invalid:?}");
    }
    assert_eq!(Refusal::Invalid.to_string(), r#"{"message": "Invalid request."}"#);
}

#[test]
fn the_instance_that_is_meant() {
    let status = |main: serde_json::Value| -> PodStatus {
        let mut main = main;
        main["name"] = json!("main");
        for (field, value) in [
            ("image", json!("")),
            ("imageID", json!("")),
            ("ready", json!(false)),
            ("restartCount", json!(0)),
        ] {
            main[field] = value;
        }
        serde_json::from_value(json!({"containerStatuses": [main]})).expect("status")
    };
    let ended = |id: &str| json!({"terminated": {"exitCode": 0, "containerID": id}});
    let of = r#"container "main" in pod "p""#;
    for (name, given, previous, expected) in [
        ("running", json!({"state": {"running": {}}, "containerID": "containerd://a"}), false, Ok("a")),
        ("ended", json!({"state": ended("containerd://b")}), false, Ok("b")),
        ("ended without an id", json!({"state": ended(""), "lastState": ended("x://c")}), false, Ok("c")),
        ("ended, nothing left", json!({"state": ended("")}), false, Err(format!("{of} is terminated"))),
        (
            "between two starts",
            json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended("x://d")}),
            false,
            Ok("d"),
        ),
        (
            "not started",
            json!({"state": {"waiting": {"reason": "ContainerCreating"}}}),
            false,
            Err(format!("{of} is waiting to start: ContainerCreating")),
        ),
        (
            "no image",
            json!({"state": {"waiting": {"reason": "ErrImagePull"}}}),
            false,
            Err(format!("{of} is waiting to start: image can't be pulled")),
        ),
        (
            "no image, later",
            json!({"state": {"waiting": {"reason": "ImagePullBackOff"}}}),
            false,
            Err(format!("{of} is waiting to start: trying and failing to pull image")),
        ),
        ("no state", json!({}), false, Err(format!("{of} is waiting to start - no logs yet"))),
        ("previous", json!({"state": {"running": {}}, "lastState": ended("x://e")}), true, Ok("e")),
        (
            "no previous",
            json!({"state": {"running": {}}}),
            true,
            Err(r#"previous terminated container "main" in pod "p" not found"#.into()),
        ),
    ] {
        let found = choose("p", &status(given), "main", previous);
        assert_eq!(found.map(String::from), expected.map(str::to_owned), "{name}");
    }
    let absent = choose("p", &PodStatus::default(), "main", false);
    assert_eq!(absent.map(String::from), Err(format!("{of} is not available")));
}

#[test]
fn a_rotation_keeps_the_newest_and_compresses_all_but_the_last() {
    let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let others = names(&[
        "0.log",
        "0.log.20260102-030401.gz",
        "0.log.20260102-030402.gz",
        "0.log.20260102-030403",
        "0.log.20260102-030403.gz",
        "0.log.20260102-030404",
        "0.log.20260102-030404.tmp",
        "0.log.1",
        "10.log.20260102-030404",
        "notes",
    ]);
    let plan = rotation::plan("0.log", &others, 4, at("2026-01-02T03:04:05Z"));
    let remove = names(&[
        "0.log.20260102-030403",
        "0.log.20260102-030404.tmp",
        "0.log.20260102-030401.gz",
        "0.log.20260102-030402.gz",
    ]);
    assert_eq!(plan.remove, remove);
    assert_eq!(plan.compress, names(&["0.log.20260102-030404"]));
    assert_eq!(plan.aside, "0.log.20260102-030405");
    let plan = rotation::plan("0.log", &others, 2, at("2026-01-02T03:04:05Z"));
    assert!(plan.compress.is_empty(), "two files: the log and the last one");
}

#[test]
fn names_only_go_up() {
    let name = |others: &[&str], now: &str| {
        let others: Vec<_> = others.iter().map(|n| (*n).to_owned()).collect();
        rotation::plan("0.log", &others, 5, at(now)).aside
    };
    assert_eq!(name(&[], "2026-01-02T03:04:05.9Z"), "0.log.20260102-030405");
    let same_second = name(&["0.log.20260102-030405"], "2026-01-02T03:04:05.9Z");
    assert_eq!(same_second, "0.log.20260102-030406");
    let clock_went_back = name(&["0.log.20260102-235959.gz"], "2026-01-01T00:00:00Z");
    assert_eq!(clock_went_back, "0.log.20260103-000000");
    let put_there = name(&["0.log.99999999-999999"], "2026-01-01T00:00:00Z");
    assert_eq!(put_there, "0.log.99999999-9999990");
}

#[test]
fn a_quick_log_is_looked_at_when_it_is_full() {
    use std::time::Duration;
    let seconds = Duration::from_secs;
    let grew = |bytes| Some(Growth { bytes, during: seconds(2) });
    assert_eq!(rotation::next_check(0, 100, None, seconds(10)), seconds(10));
    assert_eq!(rotation::next_check(50, 100, grew(0), seconds(10)), seconds(10));
    assert_eq!(rotation::next_check(50, 100, grew(50), seconds(10)), seconds(2));
    assert_eq!(rotation::next_check(50, 100, grew(5), seconds(10)), seconds(10));
    assert_eq!(rotation::next_check(99, 100, grew(1000), seconds(10)), rotation::SHORTEST_PAUSE);
}
