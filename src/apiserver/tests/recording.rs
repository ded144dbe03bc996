use keelson_fakes::api::Fault;

use super::*;
use crate::{EventRecorder, EventType, ObjectRef};

fn subject() -> ObjectRef {
    let pod = serde_json::from_value(pod("a")).unwrap();
    ObjectRef::container(&pod, "c")
}

#[tokio::test]
async fn an_event_is_written_as_the_kubelet_would() {
    let rig = rig().await;
    let recorder = EventRecorder::start(rig.api.clone());
    recorder.event(&subject(), EventType::Normal, "Started", "Started container c");
    soon(rig.fake.until(|fake| fake.all("events").len() == 1)).await;
    let event = rig.fake.all("events").remove(0);
    assert_eq!(event["source"], json!({"component": "kubelet", "host": "n1"}));
    assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{c}");
    assert_eq!(event["involvedObject"]["kind"], "Pod");
    assert_eq!(event["metadata"]["namespace"], "default");
    assert_eq!((event["type"].as_str(), event["reason"].as_str()), (Some("Normal"), Some("Started")));
    assert_eq!(event["count"], 1);
}

#[tokio::test]
async fn a_repeated_event_is_counted_and_one_that_expired_begins_anew() {
    let rig = rig().await;
    let recorder = EventRecorder::start(rig.api.clone());
    for _ in 0..3 {
        recorder.event(&subject(), EventType::Warning, "BackOff", "m");
    }
    soon(rig.fake.until(|fake| fake.all("events").first().is_some_and(|event| event["count"] == 3))).await;
    assert_eq!(rig.fake.all("events").len(), 1);
    let name = rig.fake.all("events")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    rig.fake.remove("events", "default", &name);
    recorder.event(&subject(), EventType::Warning, "BackOff", "m");
    soon(rig.fake.until(|fake| fake.all("events").len() == 1)).await;
    assert_eq!(rig.fake.all("events")[0]["count"], 1);
}

#[tokio::test]
async fn events_wait_for_a_server_that_is_away_and_never_hold_anyone_up() {
    let mut rig = rig().await;
    rig.fake.stop().await;
    let recorder = EventRecorder::start(rig.api.clone());
    for n in 0..5000 {
        recorder.event(&subject(), EventType::Normal, "Flood", &n.to_string());
    }
    let node = ObjectRef::node("n1");
    rig.fake.start_again().await;
    soon(rig.fake.until(|fake| fake.all("events").iter().any(|event| event["reason"] == "Flood"))).await;
    // The flood is about one object, so that only its burst gets through.
    let events = rig.fake.all("events");
    assert!(events.len() <= 25, "{} events", events.len());
    drop(node);
}

#[tokio::test]
async fn what_the_server_refuses_does_not_stop_the_rest() {
    let rig = rig().await;
    let recorder = EventRecorder::start(rig.api.clone());
    rig.fake.fault("create", "events", 1, Fault::Status(403));
    recorder.event(&subject(), EventType::Normal, "Refused", "m");
    recorder.event(&ObjectRef::node("n1"), EventType::Normal, "NodeReady", "m");
    soon(rig.fake.until(|fake| fake.all("events").len() == 1)).await;
    let event = rig.fake.all("events").remove(0);
    assert_eq!(event["reason"], "NodeReady");
    assert_eq!(event["involvedObject"], json!({"kind": "Node", "name": "n1", "uid": "n1"}));
    assert_eq!(event["metadata"]["namespace"], "default");
}

#[tokio::test]
async fn without_an_apiserver_events_go_to_the_log_alone() {
    EventRecorder::standalone().event(&subject(), EventType::Normal, "Started", "m");
}
