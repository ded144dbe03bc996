use std::pin::Pin;

use futures::{Stream, StreamExt as _};
use keelson_fakes::api::Fault;

use super::*;
use crate::Update;

type Pods = Pin<Box<dyn Stream<Item = Update<k8s_openapi::api::core::v1::Pod>> + Send>>;

/// An event as "verb name", and a list as "synced a b".
async fn next(pods: &mut Pods) -> String {
    let name = |pod: &k8s_openapi::api::core::v1::Pod| pod.metadata.name.clone().unwrap_or_default();
    match soon(pods.next()).await.unwrap() {
        Update::Synced { items: pods, .. } => {
            let names: Vec<_> = pods.iter().map(name).collect();
            format!("synced {}", names.join(" ")).trim_end().to_owned()
        }
        Update::Applied(pod) => format!("applied {}", name(&pod)),
        Update::Deleted(pod) => format!("deleted {}", name(&pod)),
        Update::Disconnected(_) => "disconnected".to_owned(),
    }
}

/// The next thing that is not about the connection.
async fn next_news(pods: &mut Pods) -> String {
    loop {
        let event = next(pods).await;
        if event != "disconnected" {
            return event;
        }
    }
}

#[tokio::test]
async fn what_is_there_comes_first_and_then_every_change() {
    let rig = rig().await;
    rig.fake.put("pods", &pod("a"));
    let mut elsewhere = pod("other");
    elsewhere["spec"]["nodeName"] = json!("n2");
    rig.fake.put("pods", &elsewhere);

    let mut pods: Pods = Box::pin(rig.api.pods());
    assert_eq!(next(&mut pods).await, "synced a");
    rig.fake.put("pods", &pod("b"));
    assert_eq!(next(&mut pods).await, "applied b");
    rig.fake.remove("pods", "default", "a");
    assert_eq!(next(&mut pods).await, "deleted a");
    assert_eq!(rig.fake.requests("list", "pods"), 1);
    let query = &rig.fake.seen("list", "pods")[0].query;
    assert!(query.contains("spec.nodeName%3Dn1"), "the Node authorizer allows nothing wider: {query}");
}

#[tokio::test]
async fn field_ownership_is_not_kept_in_memory() {
    let rig = rig().await;
    rig.fake.put("pods", &pod("a"));
    let mut pods = Box::pin(rig.api.pods());
    let Some(Update::Synced { items: list, .. }) = soon(pods.next()).await else { panic!("no list") };
    assert_eq!(list[0].metadata.managed_fields, None);
    rig.fake.put("pods", &pod("b"));
    let Some(Update::Applied(pod)) = soon(pods.next()).await else { panic!("no event") };
    assert_eq!(pod.metadata.managed_fields, None);
}

#[tokio::test]
async fn a_watch_whose_time_is_up_goes_on_where_it_was() {
    let rig = rig().await;
    let mut pods: Pods = Box::pin(rig.api.pods());
    assert_eq!(next(&mut pods).await, "synced");
    for name in ["a", "b", "c"] {
        rig.fake.put("pods", &pod(name));
        assert_eq!(next(&mut pods).await, format!("applied {name}"));
        rig.fake.close_watches();
    }
    assert_eq!(rig.fake.requests("list", "pods"), 1, "no second list was needed");
}

#[tokio::test]
async fn half_a_line_loses_nothing() {
    let rig = rig().await;
    rig.fake.fault("watch", "pods", 1, Fault::HalfLine);
    let mut pods: Pods = Box::pin(rig.api.pods());
    assert_eq!(next(&mut pods).await, "synced");
    rig.fake.put("pods", &pod("a"));
    let event = next_news(&mut pods).await;
    assert!(["applied a", "synced a"].contains(&event.as_str()), "{event}");
}

#[tokio::test]
async fn a_version_that_is_gone_is_answered_by_a_new_list() {
    let rig = rig().await;
    rig.fake.put("pods", &pod("a"));
    let mut pods: Pods = Box::pin(rig.api.pods());
    assert_eq!(next(&mut pods).await, "synced a");
    rig.fake.fault("watch", "pods", 1, Fault::Gone);
    rig.fake.remove("pods", "default", "a");
    rig.fake.put("pods", &pod("b"));
    assert_eq!(next(&mut pods).await, "synced b");
    rig.fake.put("pods", &pod("c"));
    assert_eq!(next(&mut pods).await, "applied c");
}

#[tokio::test]
async fn gone_over_and_over_ends_in_a_list_that_is_true() {
    let rig = rig().await;
    rig.fake.fault("watch", "pods", 3, Fault::Gone);
    let mut pods: Pods = Box::pin(rig.api.pods());
    for _ in 0..4 {
        assert_eq!(next(&mut pods).await, "synced");
    }
    rig.fake.put("pods", &pod("a"));
    assert_eq!(next(&mut pods).await, "applied a");
}

#[tokio::test]
async fn a_silent_watch_is_opened_again() {
    let timings = Timings { watch_idle: Duration::from_millis(50), ..impatient() };
    let rig = rig_with(timings).await;
    rig.fake.fault("watch", "pods", 2, Fault::Silent);
    let mut pods: Pods = Box::pin(rig.api.pods());
    assert_eq!(next(&mut pods).await, "synced");
    rig.fake.put("pods", &pod("a"));
    assert_eq!(next(&mut pods).await, "applied a");
    assert!(rig.fake.requests("watch", "pods") >= 3);
}

#[tokio::test]
async fn a_bookmark_keeps_the_place_through_a_compaction() {
    let rig = rig().await;
    let mut pods: Pods = Box::pin(rig.api.pods());
    assert_eq!(next(&mut pods).await, "synced");
    // Changes elsewhere move the version on without this watch hearing of it.
    let (first, ()) = soon(async {
        futures::join!(next(&mut pods), async {
            rig.fake.until(|fake| fake.open_watches("pods") == 1).await;
            rig.fake.put("configmaps", &json!({"metadata": {"name": "m", "namespace": "default"}}));
            rig.fake.bookmark().await;
            rig.fake.compact();
            rig.fake.close_watches();
            rig.fake.until(|fake| fake.requests("watch", "pods") == 2).await;
            rig.fake.put("pods", &pod("a"));
        })
    })
    .await;
    assert_eq!(first, "applied a");
    assert_eq!(rig.fake.requests("list", "pods"), 1);
}

#[tokio::test]
async fn a_server_that_is_away_is_reported_and_found_again_with_another_state() {
    let mut rig = rig().await;
    rig.fake.put("pods", &pod("a"));
    let mut pods: Pods = Box::pin(rig.api.pods());
    assert_eq!(next(&mut pods).await, "synced a");
    rig.fake.stop().await;
    let Some(Update::Disconnected(error)) = soon(pods.next()).await else { panic!("not reported") };
    assert!(error.to_string().contains("pods of node n1"), "{error}");
    let Some(Update::Disconnected(error)) = soon(pods.next()).await else { panic!("not reported") };
    let why = error.to_string();
    assert!(why.contains(&rig.fake.url) && why.contains("refused"), "says where and why: {why}");
    rig.fake.remove("pods", "default", "a");
    rig.fake.put("pods", &pod("b"));
    rig.fake.compact();
    rig.fake.start_again().await;
    assert_eq!(next_news(&mut pods).await, "synced b");
}

#[tokio::test]
async fn a_server_that_is_down_at_start_is_waited_for() {
    let mut rig = rig().await;
    rig.fake.stop().await;
    let mut pods: Pods = Box::pin(rig.api.pods());
    for _ in 0..3 {
        assert_eq!(next(&mut pods).await, "disconnected");
    }
    rig.fake.put("pods", &pod("a"));
    rig.fake.start_again().await;
    assert_eq!(next_news(&mut pods).await, "synced a");
}

#[tokio::test]
async fn errors_of_the_server_are_waited_out() {
    let rig = rig().await;
    rig.fake.put("pods", &pod("a"));
    rig.fake.fault("list", "pods", 2, Fault::Status(500));
    rig.fake.fault("list", "pods", 1, Fault::Busy(0));
    rig.fake.fault("watch", "pods", 2, Fault::Status(503));
    let mut pods: Pods = Box::pin(rig.api.pods());
    assert_eq!(next_news(&mut pods).await, "synced a");
    rig.fake.put("pods", &pod("b"));
    assert_eq!(next_news(&mut pods).await, "applied b");
}
