use keelson_core::timeline::StepReport;

use super::*;

fn uid(text: &str) -> PodUid {
    PodUid::try_from(text).unwrap()
}

fn begin(timelines: &Timelines, of: &str) -> Recorder {
    let uid = uid(of);
    timelines.of(&uid, |began| Beginning { fresh: true, ..Beginning::left(&uid, "ns", "web", began) })
}

fn why(timelines: &Timelines, pod: &str) -> WhyReport {
    timelines.why(&Query { pod, namespace: None }, &[]).unwrap()
}

fn steps(report: &WhyReport, name: &str) -> Vec<StepReport> {
    report.stages.iter().flat_map(|s| &s.steps).filter(|s| s.step == name).cloned().collect()
}

#[test]
fn a_step_is_measured_once_for_the_record_and_for_whoever_counts() {
    let timelines = Timelines::default();
    let recorder = begin(&timelines, "u1");
    let took = recorder.begin(Step::Sandbox, None, Place::Runtime).ended(&Ok::<(), ()>(()));
    let found = &steps(&why(&timelines, "u1"), "sandbox")[0];
    assert_eq!((found.seconds, found.result.as_str()), (Some(took.as_micros() as f64 / 1e6), "done"));
}

#[test]
fn a_step_that_is_dropped_is_given_up() {
    let timelines = Timelines::default();
    let recorder = begin(&timelines, "u1");
    let timing = recorder.begin(Step::Pull, Some("app"), Place::Registry);
    assert_eq!(steps(&why(&timelines, "u1"), "pull")[0].result, "running");
    drop(timing);
    assert_eq!(steps(&why(&timelines, "u1"), "pull")[0].result, "givenUp");
    let failed = recorder.begin(Step::Pull, Some("app"), Place::Registry);
    failed.ended(&Err::<(), ()>(()));
    assert_eq!(steps(&why(&timelines, "u1"), "pull")[0].failed_tries, 1);
}

#[test]
fn a_pod_has_one_record_until_it_is_gone_and_another_one_after() {
    let timelines = Timelines::default();
    begin(&timelines, "u1").record(|t, now| t.failed(Step::Sandbox, Place::Runtime, None, "first", now));
    begin(&timelines, "u1").record(|t, now| t.failed(Step::Sandbox, Place::Runtime, None, "second", now));
    assert_eq!(why(&timelines, "u1").failures.len(), 2);
    timelines.gone(&uid("u1"));
    timelines.gone(&uid("u1"));
    assert!(timelines.get(&uid("u1")).is_none());
    assert_eq!(why(&timelines, "web").phase, "Gone");
    begin(&timelines, "u1");
    let back = why(&timelines, "web");
    assert_eq!((back.phase.as_str(), back.failures.len(), back.others.len()), ("Pending", 0, 1));
}

#[test]
fn many_pods_are_recorded_at_once_while_somebody_asks() {
    let timelines = Timelines::default();
    std::thread::scope(|scope| {
        for n in 0..8 {
            let timelines = &timelines;
            scope.spawn(move || {
                let name = format!("u{n}");
                for _ in 0..200 {
                    let recorder = begin(timelines, &name);
                    recorder.begin(Step::Sandbox, None, Place::Runtime).end(Ending::Done);
                    let _ = timelines.why(&Query { pod: "u0", namespace: None }, &[]);
                }
                timelines.gone(&uid(&name));
            });
        }
    });
    let report = why(&timelines, "u7");
    assert_eq!((report.phase.as_str(), report.others.len()), ("Gone", 7));
}
