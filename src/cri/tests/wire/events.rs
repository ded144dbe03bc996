//! When an observation is asked for: by events, by lists, and across the runtime's death.

use std::time::Duration;

use keelson_cri::{RuntimeChange, watch};
use keelson_fakes::cri::{Fault, Lie, Rpc};
use tokio::sync::mpsc;
use tonic::Code;

use crate::{Bench, PATIENT, bench, pod};

/// So long that whatever is reported in a test came by an event.
const NEVER: Duration = Duration::from_secs(3600);
const OFTEN: Duration = Duration::from_millis(10);

async fn expect(changes: &mut mpsc::Receiver<RuntimeChange>, wanted: &RuntimeChange) {
    let found = async {
        while let Some(change) = changes.recv().await {
            if change == *wanted {
                return;
            }
        }
        panic!("the watch ended");
    };
    tokio::time::timeout(PATIENT, found).await.unwrap_or_else(|_| panic!("no {wanted:?}"));
}

/// The fake only reports what happens once it has a listener.
async fn listening(bench: &Bench, streams: usize) {
    let opened = async {
        while bench.fake.calls(Rpc::GetContainerEvents) < streams {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENT, opened).await.unwrap();
}

#[tokio::test]
async fn an_event_asks_for_a_look_at_its_pod_which_then_costs_no_question() {
    let bench = bench(PATIENT);
    let mut changes = watch(bench.runtime.clone(), NEVER);
    expect(&mut changes, &RuntimeChange::Resync).await;
    listening(&bench, 1).await;

    let parts = pod("web");
    let (_, container) = bench.run(&parts).await;
    expect(&mut changes, &RuntimeChange::Pod(parts.uid.clone())).await;
    assert!(bench.fake.exit_container(container.as_str(), 0));
    // Created and started of both, and the exit.
    for _ in 0..4 {
        expect(&mut changes, &RuntimeChange::Pod(parts.uid.clone())).await;
    }
    let seen = bench.observe(&parts.uid).await.unwrap();
    assert_eq!(seen.running().count(), 0);
    assert_eq!((bench.fake.calls(Rpc::ContainerStatus), bench.fake.calls(Rpc::PodSandboxStatus)), (0, 0));
}

#[tokio::test]
async fn a_removed_sandbox_is_reported_for_its_pod() {
    let bench = bench(PATIENT);
    let parts = pod("web");
    let (sandbox, _) = bench.run(&parts).await;
    let mut changes = watch(bench.runtime.clone(), NEVER);
    expect(&mut changes, &RuntimeChange::Resync).await;
    listening(&bench, 1).await;
    bench.runtime.remove_sandbox(&sandbox).await.unwrap();
    // The two exits, the container's removal, and the sandbox's, which cannot name its pod any more.
    for _ in 0..4 {
        expect(&mut changes, &RuntimeChange::Pod(parts.uid.clone())).await;
    }
}

#[tokio::test]
async fn without_an_event_stream_changes_are_found_in_the_lists() {
    let refusals = [
        (Code::Unimplemented, "unknown method GetContainerEvents"),
        (Code::Unknown, "events are disabled by configuration"),
    ];
    for (code, message) in refusals {
        let bench = bench(PATIENT);
        bench.fake.fault(Rpc::GetContainerEvents, Fault::Error(code, message.into()));
        let mut changes = watch(bench.runtime.clone(), OFTEN);
        expect(&mut changes, &RuntimeChange::Resync).await;
        let (web, other) = (pod("web"), pod("other"));
        let (_, container) = bench.run(&web).await;
        expect(&mut changes, &RuntimeChange::Pod(web.uid.clone())).await;
        bench.run(&other).await;
        expect(&mut changes, &RuntimeChange::Pod(other.uid.clone())).await;
        assert!(bench.fake.exit_container(container.as_str(), 1));
        expect(&mut changes, &RuntimeChange::Pod(web.uid.clone())).await;
        assert_eq!(bench.fake.calls(Rpc::GetContainerEvents), 1, "asked again although it was refused");
        assert_eq!(bench.fake.calls(Rpc::ContainerStatus), 0, "lists are enough to find changes");
    }
}

#[tokio::test]
async fn a_cut_stream_is_opened_again_and_everything_looked_at() {
    let bench = bench(PATIENT);
    let mut changes = watch(bench.runtime.clone(), NEVER);
    expect(&mut changes, &RuntimeChange::Resync).await;
    listening(&bench, 1).await;
    bench.fake.cut_events();
    expect(&mut changes, &RuntimeChange::Resync).await;
    listening(&bench, 2).await;
    let parts = pod("web");
    bench.run(&parts).await;
    expect(&mut changes, &RuntimeChange::Pod(parts.uid.clone())).await;
}

#[tokio::test]
async fn a_runtime_that_dies_and_comes_back_is_looked_at_anew() {
    let mut bench = bench(PATIENT);
    let mut changes = watch(bench.runtime.clone(), NEVER);
    expect(&mut changes, &RuntimeChange::Resync).await;
    listening(&bench, 1).await;
    bench.fake.restart().unwrap();
    expect(&mut changes, &RuntimeChange::Resync).await;
    let parts = pod("web");
    listening(&bench, 2).await;
    bench.run(&parts).await;
    expect(&mut changes, &RuntimeChange::Pod(parts.uid.clone())).await;
}

#[tokio::test]
async fn a_restart_that_no_list_ran_into_is_found_out_all_the_same() {
    let mut bench = bench(PATIENT);
    bench.fake.fault(Rpc::GetContainerEvents, Fault::Error(Code::Unimplemented, String::new()));
    // Seldom enough that the connection is gone and there again between two lists.
    let mut changes = watch(bench.runtime.clone(), Duration::from_millis(300));
    expect(&mut changes, &RuntimeChange::Resync).await;
    let parts = pod("web");
    bench.run(&parts).await;
    expect(&mut changes, &RuntimeChange::Pod(parts.uid.clone())).await;
    bench.fake.restart().unwrap();
    expect(&mut changes, &RuntimeChange::Resync).await;
    listening(&bench, 2).await;
}

#[tokio::test]
async fn after_a_list_that_failed_everything_is_looked_at_and_the_stream_tried_again() {
    let bench = bench(PATIENT);
    bench.fake.fault(Rpc::GetContainerEvents, Fault::Error(Code::Unimplemented, String::new()));
    let mut changes = watch(bench.runtime.clone(), OFTEN);
    expect(&mut changes, &RuntimeChange::Resync).await;
    bench.fake.fault(Rpc::ListPodSandbox, Fault::Error(Code::Unavailable, "shutting down".into()));
    listening(&bench, 2).await;
    bench.fake.clear();
    expect(&mut changes, &RuntimeChange::Resync).await;
    let parts = pod("web");
    bench.run(&parts).await;
    expect(&mut changes, &RuntimeChange::Pod(parts.uid.clone())).await;
}

#[tokio::test]
async fn a_hostile_event_is_ignored_and_the_next_one_is_heard() {
    let bench = bench(PATIENT);
    bench.fake.fault(Rpc::GetContainerEvents, Fault::Lie(Lie::EmptyId));
    let mut changes = watch(bench.runtime.clone(), NEVER);
    expect(&mut changes, &RuntimeChange::Resync).await;
    listening(&bench, 1).await;
    let parts = pod("web");
    bench.run(&parts).await;
    expect(&mut changes, &RuntimeChange::Pod(parts.uid.clone())).await;
    let seen = bench.observe(&parts.uid).await.unwrap();
    assert_eq!(seen.running().count(), 1);
}
