use keelson_core::timeline::{
    FailureReport, OtherPod, PlaceTime, StageReport, StepReport, WaitReport, WhyReport,
};

use super::{svg, text, write_whole};

fn step(name: &str, container: Option<&str>, offset: f64, seconds: f64) -> StepReport {
    StepReport {
        step: name.into(),
        container: container.map(Into::into),
        place: Some("runtime".into()),
        began_at: "2026-01-01T00:00:00Z".into(),
        ended_at: Some("2026-01-01T00:00:00Z".into()),
        offset_seconds: offset,
        seconds: Some(seconds),
        at_most: false,
        failed_tries: 0,
        result: "done".into(),
        note: None,
        slowest: false,
    }
}

fn report() -> WhyReport {
    let seen = StepReport { at_most: true, ..step("seen", None, 0.0, 0.5) };
    let pull =
        StepReport { slowest: true, note: Some("10 bytes".into()), ..step("pull", Some("app"), 0.5, 1.5) };
    let stage = StageReport {
        stage: "start".into(),
        began_at: "2026-01-01T00:00:00.25Z".into(),
        ended_at: Some("2026-01-01T00:00:02.25Z".into()),
        seconds: Some(2.0),
        steps: vec![seen, pull],
        places: vec![PlaceTime { place: "registry".into(), seconds: 1.5 }],
    };
    WhyReport {
        namespace: "default".into(),
        name: "web".into(),
        uid: "u1".into(),
        source: "api".into(),
        phase: "Running".into(),
        ready: false,
        summary: "not ready, 12.0 s after it was seen".into(),
        at: "2026-01-01T00:00:20Z".into(),
        gone_at: None,
        now: vec![WaitReport {
            container: Some("app".into()),
            what: "its readiness probe has not succeeded: \u{1b}[31m503".into(),
            then: "it is ready when the probe succeeds".into(),
            since: Some("2026-01-01T00:00:18Z".into()),
            retry_at: None,
            retry_in_seconds: Some(12.0),
        }],
        stages: vec![stage],
        failures: vec![FailureReport {
            first_at: "2026-01-01T00:00:10Z".into(),
            last_at: "2026-01-01T00:00:17Z".into(),
            count: 3,
            step: "probe".into(),
            container: Some("app".into()),
            place: "probe".into(),
            cause: "503".into(),
        }],
        others: vec![OtherPod { uid: "u0".into(), gone_at: Some("2025-12-31T00:00:00Z".into()) }],
        left_out: 0,
    }
}

#[test]
fn a_page_says_what_is_waited_for_and_marks_the_slowest_step() {
    let bar = |from: usize, length: usize| {
        format!("|{}{}{}|", " ".repeat(from), "\u{2588}".repeat(length), " ".repeat(30 - from - length))
    };
    let expected = format!(
        "default/web is Running, not ready, 12.0 s after it was seen\n\
         uid u1\n\
         another pod of this name is gone since 2025-12-31 00:00:00.000Z: keelson why u0\n\
         \n\
         NOW\n\
         \u{20} app: its readiness probe has not succeeded:  [31m503, for 2.00 s\n\
         \u{20}   it is ready when the probe succeeds; next try in 12.0 s\n\
         \n\
         START  2026-01-01 00:00:00.250Z, 2.00 s in all\n\
         \u{20} seen         +0.000   \u{2264} 500 ms   {}   runtime\n\
         \u{20} pull   app   +0.500   1.50 s     {}   runtime (10 bytes)  \u{25c0} slowest\n\
         \u{20} the time went to: registry 1.50 s\n\
         \n\
         LAST FAILURES\n\
         \u{20} 3.00 s ago, 3 times since 2026-01-01 00:00:10.000Z: probe of app (probe): 503\n",
        bar(0, 8),
        bar(8, 22)
    );
    assert_eq!(text::page(&report(), false), expected);
}

#[test]
fn bars_stay_within_their_frame_whatever_the_times() {
    for (offset, seconds) in [(0.0, 0.0), (2.0, 0.0), (1.999, 1e9), (1e12, 1e-9), (0.0, f64::MAX)] {
        let mut report = report();
        report.stages[0].steps = vec![step("sandbox", None, offset, seconds)];
        let page = text::page(&report, false);
        let line = page.lines().find(|l| l.contains("sandbox")).unwrap();
        let bar: String = line.chars().skip_while(|c| *c != '|').take(32).collect();
        assert!(bar.ends_with('|') && bar.contains('\u{2588}'), "{line}");
    }
}

#[test]
fn a_stage_without_any_time_is_drawn_too() {
    let mut report = report();
    report.stages[0].seconds = None;
    report.stages[0].steps =
        vec![StepReport { seconds: None, place: None, ..step("started", Some("app"), 0.0, 0.0) }];
    assert!(text::page(&report, false).contains("before this agent was started"));
    well_formed(&svg::draw(&report));
}

/// Every element that is opened is closed in its order, every value is in quotes, and no character stands for itself that
/// means something.
fn well_formed(xml: &str) {
    let mut open: Vec<&str> = vec![];
    let mut rest = xml;
    while let Some(at) = rest.find('<') {
        let (text, tag) = rest.split_at(at);
        assert!(!text.contains('>'), "a bare > in {text:?}");
        let entities = text.split('&').skip(1);
        for entity in entities {
            let name = entity.split(';').next().unwrap();
            assert!(["lt", "gt", "amp", "quot"].contains(&name), "&{entity}");
        }
        let end = tag.find('>').expect("a tag that ends");
        let inner = &tag[1..end];
        assert_eq!(inner.matches('"').count() % 2, 0, "{inner}");
        match inner.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if inner.ends_with('/') => {}
            None => open.push(inner.split(' ').next().unwrap()),
        }
        rest = &tag[end + 1..];
    }
    assert!(open.is_empty(), "{open:?} stay open");
    assert!(!xml.chars().any(|c| c.is_control() && c != '\n'), "{xml:?}");
}

#[test]
fn the_picture_is_well_formed_whatever_names_and_causes_hold() {
    let mut report = report();
    for hostile in [
        "<script>alert(1)</script>",
        "a&b\"c'd",
        "\u{0}\u{1b}[31m\u{ffff}",
        "]]>",
        &"\u{1f980}<&>".repeat(500),
    ] {
        report.name = hostile.into();
        report.now[0].what = hostile.into();
        report.failures[0].cause = hostile.into();
        report.stages[0].steps[1].container = Some(hostile.into());
        report.stages[0].steps[1].step = hostile.into();
        let drawn = svg::draw(&report);
        well_formed(&drawn);
        assert!(drawn.contains("class=\"slowest\""), "{drawn}");
        assert!(!drawn.contains("<script"), "{drawn}");
    }
}

#[test]
fn a_picture_is_written_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("why.svg");
    write_whole(&file, "one").unwrap();
    write_whole(&file, "two").unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
    // Something in the way: the error names the file, and nothing half-written stays.
    let taken = directory.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    let error = format!("{:#}", write_whole(&taken, "three").unwrap_err());
    assert!(error.contains("--svg") && error.contains("taken"), "{error}");
    let mut left: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["taken", "why.svg"]);
    assert!(write_whole("/".as_ref(), "x").is_err());
}
