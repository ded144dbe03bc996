use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use keelson_fakes::api::Fault;

use super::*;
use crate::{ErrorKind, TokenCache, TokenSpec};

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn stored_uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_status_is_changed_without_losing_what_others_wrote() {
    let rig = rig().await;
    let mut object = pod("a");
    object["status"] = json!({"phase": "Pending", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [
        {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]});
    let uid = stored_uid(&rig.fake.put("pods", &object));
    // Someone adds a condition that this node does not know of yet.
    let mut newer = rig.fake.get("pods", "default", "a").unwrap();
    newer["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "example.com/gate", "status": "True"}));
    rig.fake.put("pods", &newer);

    let old = status(object["status"].clone());
    let new = status(
        json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}], "conditions": [
        {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]}),
    );
    let pod = soon(rig.api.patch_pod_status("default", "a", &uid, &old, &new)).await.unwrap().unwrap();
    assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Running"));
    let stored = rig.fake.get("pods", "default", "a").unwrap();
    assert_eq!(
        stored["status"],
        json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}], "conditions": [
            {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"},
            {"type": "example.com/gate", "status": "True"}]})
    );
}

#[tokio::test]
async fn a_status_that_did_not_change_is_not_sent() {
    let rig = rig().await;
    let same = status(json!({"phase": "Running"}));
    let sent = soon(rig.api.patch_pod_status("default", "a", "u", &same, &same)).await.unwrap();
    assert!(sent.is_none());
    assert_eq!(rig.fake.all_requests(), 0);
}

#[tokio::test]
async fn a_pod_that_took_the_name_of_ours_is_left_alone() {
    let rig = rig().await;
    rig.fake.put("pods", &pod("a"));
    let new = status(json!({"phase": "Failed"}));
    let error =
        soon(rig.api.patch_pod_status("default", "a", "of-the-old-one", &PodStatus::default(), &new)).await;
    assert!(error.unwrap_err().is_conflict());
    let error = soon(rig.api.delete_pod("default", "a", "of-the-old-one")).await;
    assert!(error.unwrap_err().is_conflict());
    let stored = rig.fake.get("pods", "default", "a").unwrap();
    assert!(stored["status"]["phase"].is_null(), "{stored}");

    let error = soon(rig.api.patch_pod_status("default", "gone", "u", &PodStatus::default(), &new)).await;
    assert!(error.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_conflict_on_status_is_told_as_one() {
    let rig = rig().await;
    let uid = stored_uid(&rig.fake.put("pods", &pod("a")));
    rig.fake.fault("patch", "pods/status", 1, Fault::Status(409));
    let new = status(json!({"phase": "Running"}));
    let old = PodStatus::default();
    assert!(
        soon(rig.api.patch_pod_status("default", "a", &uid, &old, &new)).await.unwrap_err().is_conflict()
    );
    assert!(soon(rig.api.patch_pod_status("default", "a", &uid, &old, &new)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_pod_is_removed_for_good_once_it_is_down() {
    let rig = rig().await;
    let uid = stored_uid(&rig.fake.put("pods", &pod("a")));
    rig.fake.delete_gracefully("default", "a", 30);
    assert!(rig.fake.get("pods", "default", "a").is_some());
    soon(rig.api.delete_pod("default", "a", &uid)).await.unwrap();
    assert_eq!(rig.fake.get("pods", "default", "a"), None);
    assert!(soon(rig.api.delete_pod("default", "a", &uid)).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_mirror_is_created_once() {
    let rig = rig().await;
    let mirror: Pod = serde_json::from_value(pod("static-n1")).unwrap();
    let created = soon(rig.api.create_mirror(&mirror)).await.unwrap();
    assert!(created.metadata.uid.is_some());
    assert!(soon(rig.api.create_mirror(&mirror)).await.unwrap_err().is_already_exists());
    let found = soon(rig.api.get_pod("default", "static-n1")).await.unwrap().unwrap();
    assert_eq!(found.metadata.uid, created.metadata.uid);
}

fn token_spec() -> TokenSpec {
    TokenSpec {
        namespace: "default".into(),
        service_account: "builder".into(),
        pod_name: "a".into(),
        pod_uid: uid("u1"),
        audience: String::new(),
        expiration_seconds: 3607,
    }
}

#[tokio::test]
async fn a_token_is_asked_for_once_however_many_want_it() {
    let rig = rig().await;
    let cache = TokenCache::new(rig.api.clone());
    let spec = token_spec();
    let (first, second) = soon(async { futures::join!(cache.get(&spec), cache.get(&spec)) }).await;
    assert_eq!(first.unwrap().token, "token-of-a");
    assert_eq!(second.unwrap().token, "token-of-a");
    let seen = rig.fake.seen("create", "serviceaccounts/token");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].name, "builder");
    assert_eq!(
        seen[0].body["spec"]["boundObjectRef"],
        json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u1"})
    );
    cache.release(&uid("u1"));
    soon(cache.get(&spec)).await.unwrap();
    assert_eq!(
        rig.fake.requests("create", "serviceaccounts/token"),
        2,
        "a released pod's token is forgotten"
    );
}

#[tokio::test]
async fn a_token_in_use_outlives_a_failed_renewal() {
    let rig = rig().await;
    let cache = TokenCache::new(rig.api.clone());
    // Due for renewal from its first second.
    let spec = TokenSpec { expiration_seconds: 5, ..token_spec() };
    let first = soon(cache.get(&spec)).await.unwrap();
    rig.fake.fault("create", "serviceaccounts/token", 1, Fault::Status(500));
    let second = soon(cache.get(&spec)).await.unwrap();
    assert_eq!(first, second);
}

#[tokio::test]
async fn an_authorizer_that_is_a_moment_behind_is_waited_for() {
    let rig = rig().await;
    rig.fake.fault("create", "serviceaccounts/token", 2, Fault::Status(403));
    assert!(soon(rig.api.request_token(&token_spec())).await.is_ok());
}

#[tokio::test]
async fn one_that_stays_forbidden_is_an_error_that_says_so() {
    let rig = rig().await;
    rig.fake.fault("create", "serviceaccounts/token", 100, Fault::Status(403));
    let error = soon(rig.api.request_token(&token_spec())).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Forbidden);
    assert!(error.operation.contains("default/builder"), "{error}");
}

fn node(labels: Value) -> Node {
    serde_json::from_value(json!({"metadata": {"name": "n1", "labels": labels}, "spec": {"taints": [
        {"key": "mine", "effect": "NoSchedule"}]}}))
    .unwrap()
}

#[tokio::test]
async fn a_node_that_exists_is_adopted_with_its_taints_and_foreign_labels() {
    let rig = rig().await;
    let created = soon(rig.api.register_or_adopt(&node(json!({"kubernetes.io/os": "linux"})))).await.unwrap();
    let mut stored = rig.fake.get("nodes", "", "n1").unwrap();
    stored["spec"]["taints"] = json!([{"key": "theirs", "effect": "NoExecute"}]);
    stored["metadata"]["labels"]["team"] = json!("blue");
    rig.fake.put("nodes", &stored);
    let again = soon(rig.api.register_or_adopt(&node(json!({"kubernetes.io/os": "linux", "zone": "z"}))))
        .await
        .unwrap();
    assert_eq!(again.metadata.uid, created.metadata.uid);
    let stored = rig.fake.get("nodes", "", "n1").unwrap();
    assert_eq!(
        stored["metadata"]["labels"],
        json!({"kubernetes.io/os": "linux", "team": "blue", "zone": "z"})
    );
    assert_eq!(stored["spec"]["taints"], json!([{"key": "theirs", "effect": "NoExecute"}]));
}

#[tokio::test]
async fn a_node_status_is_sent_with_what_changed_and_nothing_else() {
    let rig = rig().await;
    let known = soon(rig.api.register_or_adopt(&node(json!({"kubernetes.io/os": "linux"})))).await.unwrap();
    let with = |status: Value| Node { status: serde_json::from_value(status).unwrap(), ..known.clone() };
    let ready = with(json!({"conditions": [{"type": "Ready", "status": "True"}]}));
    let written = soon(rig.api.patch_node_status(&known, &ready)).await.unwrap().unwrap();
    assert!(soon(rig.api.patch_node_status(&written, &written)).await.unwrap().is_none());
    // Somebody takes a label away that every node must have; its taints are none of this node's business.
    let mut robbed = written.clone();
    robbed.metadata.labels = None;
    robbed.spec = None;
    soon(rig.api.patch_node_status(&robbed, &written)).await.unwrap().unwrap();
    let sent: Vec<Value> = rig.fake.seen("patch", "nodes/status").into_iter().map(|seen| seen.body).collect();
    assert_eq!(
        sent,
        [
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
            json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}}}),
        ]
    );
    rig.fake.remove("nodes", "", "n1");
    let error = soon(rig.api.patch_node_status(&known, &ready)).await.unwrap_err();
    assert!(error.is_not_found());
}
