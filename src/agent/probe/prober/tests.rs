use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use keelson_core::desired::TerminationReason;
use tokio::sync::mpsc;

use super::*;
use crate::probe::test_server::{Closed, TestServer, answer, get, place};

type Reports = mpsc::UnboundedReceiver<(String, ProbeKind, bool)>;

fn prober() -> (Prober, Arc<Notify>, Reports) {
    let (reports, received) = mpsc::unbounded_channel();
    let report: Report = Arc::new(move |container, kind, outcome| {
        let _ = reports.send((container.to_owned(), kind, *outcome == Outcome::Success));
    });
    let bell = Arc::<Notify>::default();
    (Prober::new(bell.clone(), report), bell, received)
}

/// Every second, and the first failure counts. No answer takes as long as the timeout.
fn http(port: u16) -> Option<Probe> {
    Some(Probe {
        http_get: Some(get(port, "/")),
        period_seconds: Some(1),
        failure_threshold: Some(1),
        timeout_seconds: Some(60),
        ..Default::default()
    })
}

async fn healthy() -> TestServer {
    TestServer::start(|_| answer("200 OK", "", "")).await
}

fn instance(spec: Container) -> Instance {
    Instance { place: place(spec), up: Duration::ZERO, was_ready: false, was_started: false }
}

async fn until(reports: &mut Reports, wanted: (&str, ProbeKind, bool)) -> Vec<ProbeKind> {
    let mut seen = vec![];
    loop {
        let (container, kind, good) = reports.recv().await.unwrap();
        seen.push(kind);
        if (container.as_str(), kind, good) == wanted {
            return seen;
        }
    }
}

#[tokio::test]
async fn a_probe_that_is_held_back_takes_no_change_from_the_worker() {
    let (mut prober, bell, mut reports) = prober();
    let (server, closed) = (healthy().await, Closed::new());
    // `slow` never starts, so its readiness is held back all the time.
    let patient = http(closed.port).map(|p| Probe { failure_threshold: Some(100), ..p });
    let slow = Container {
        name: "slow".into(),
        startup_probe: patient,
        readiness_probe: http(server.port),
        ..Default::default()
    };
    let quick = Container { name: "quick".into(), readiness_probe: http(server.port), ..Default::default() };
    prober.watch(instance(slow), &Lifecycle::Syncing);
    prober.watch(instance(quick), &Lifecycle::Syncing);
    until(&mut reports, ("quick", ProbeKind::Readiness, true)).await;
    // The worker is busy meanwhile, and hears of it afterwards.
    for _ in 0..3 {
        until(&mut reports, ("slow", ProbeKind::Startup, false)).await;
    }
    assert!(bell.notified().now_or_never().is_some(), "nobody else has taken it");
    let ready: Vec<_> = prober.verdicts().values().map(|v| v.ready).collect();
    assert_eq!(ready, [true, false], "quick and slow");
}

#[tokio::test]
async fn what_the_startup_probe_held_back_runs_once_it_has_passed() {
    let (mut prober, bell, mut reports) = prober();
    let server = healthy().await;
    let probe = || http(server.port);
    let spec = Container {
        name: "c".into(),
        startup_probe: probe(),
        liveness_probe: probe(),
        readiness_probe: probe(),
        ..Default::default()
    };
    prober.watch(instance(spec), &Lifecycle::Syncing);
    let seen = until(&mut reports, ("c", ProbeKind::Readiness, true)).await;
    assert_eq!(seen[0], ProbeKind::Startup);
    assert_eq!(seen.iter().filter(|k| **k == ProbeKind::Startup).count(), 1, "once started is started");
    bell.notified().await;
    let verdicts = prober.verdicts().into_values().next().unwrap();
    assert_eq!(verdicts, ProbeVerdicts { started: true, ready: true, unhealthy: None });
}

#[tokio::test]
async fn while_the_pod_is_ended_readiness_goes_on_alone() {
    let (mut prober, bell, mut reports) = prober();
    let sick = Arc::new(AtomicBool::new(false));
    let now_sick = sick.clone();
    let server = TestServer::start(move |_| match now_sick.load(Ordering::Relaxed) {
        true => answer("503 Service Unavailable", "", ""),
        false => answer("200 OK", "", ""),
    })
    .await;
    let spec = Container {
        name: "c".into(),
        liveness_probe: http(server.port),
        readiness_probe: http(server.port),
        ..Default::default()
    };
    let instance = instance(spec);
    let id = instance.place.container.clone();
    prober.watch(instance, &Lifecycle::Syncing);
    until(&mut reports, ("c", ProbeKind::Liveness, true)).await;
    until(&mut reports, ("c", ProbeKind::Readiness, true)).await;
    bell.notified().await;
    let reason = TerminationReason::Deleted;
    let ending = Lifecycle::Terminating { reason: reason.clone(), deadline: Timestamp::UNIX_EPOCH };
    prober.keep_only(&[&id], &ending);
    while reports.try_recv().is_ok() {}
    sick.store(true, Ordering::Relaxed);
    let mut seen = vec![];
    for _ in 0..2 {
        seen.extend(until(&mut reports, ("c", ProbeKind::Readiness, false)).await);
    }
    assert!(!seen.contains(&ProbeKind::Liveness), "{seen:?}");
    bell.notified().await;
    let verdicts = ProbeVerdicts { started: true, ready: false, unhealthy: None };
    assert_eq!(prober.verdicts().get(&id), Some(&verdicts));
    prober.keep_only(&[&id], &Lifecycle::Terminated { reason });
    assert!(prober.tasks.values().all(Vec::is_empty));
}
