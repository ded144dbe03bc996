use keelson_fakes::api::Fault;

use super::*;
use crate::{ErrorKind, ObjectCache, ObjectKey, ObjectKind, RuntimeClassCache, ServiceCache};

fn key(name: &str) -> ObjectKey {
    ObjectKey { kind: ObjectKind::ConfigMap, namespace: "default".into(), name: name.into() }
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "data": {"k": value}})
}

async fn value(cache: &ObjectCache, name: &str) -> Option<String> {
    let map = soon(cache.get_config_map("default", name)).await.unwrap()?;
    map.data.as_ref().and_then(|data| data.get("k").cloned())
}

#[tokio::test]
async fn a_held_object_is_fetched_once_and_its_changes_are_told() {
    let rig = rig().await;
    rig.fake.put("configmaps", &config_map("m", "1"));
    let cache = ObjectCache::new(rig.api.clone());
    let mut changes = cache.changed();
    cache.acquire(&uid("u1"), [key("m")]);
    cache.acquire(&uid("u2"), [key("m")]);
    for _ in 0..10 {
        assert_eq!(value(&cache, "m").await.as_deref(), Some("1"));
    }
    assert_eq!(rig.fake.requests("get", "configmaps"), 1);
    assert_eq!(soon(changes.recv()).await.unwrap(), key("m"));
    soon(rig.fake.until(|fake| fake.open_watches("configmaps") == 1)).await;
    rig.fake.put("configmaps", &config_map("m", "2"));
    assert_eq!(soon(changes.recv()).await.unwrap(), key("m"));
    assert_eq!(value(&cache, "m").await.as_deref(), Some("2"));
    let query = &rig.fake.seen("watch", "configmaps")[0].query;
    assert!(query.contains("metadata.name%3Dm"), "the Node authorizer allows nothing wider: {query}");
}

#[tokio::test]
async fn an_object_that_nobody_holds_is_forgotten() {
    let rig = rig().await;
    rig.fake.put("configmaps", &config_map("m", "1"));
    let cache = ObjectCache::new(rig.api.clone());
    cache.acquire(&uid("u1"), [key("m")]);
    cache.acquire(&uid("u2"), [key("m")]);
    soon(rig.fake.until(|fake| fake.open_watches("configmaps") == 1)).await;
    cache.release(&uid("u1"));
    assert_eq!(value(&cache, "m").await.as_deref(), Some("1"));
    assert_eq!(rig.fake.open_watches("configmaps"), 1);
    cache.acquire(&uid("u2"), []);
    soon(rig.fake.until(|fake| fake.open_watches("configmaps") == 0)).await;
    let before = rig.fake.requests("get", "configmaps");
    assert_eq!(value(&cache, "m").await.as_deref(), Some("1"), "what is not held is fetched");
    assert_eq!(rig.fake.requests("get", "configmaps"), before + 1);
}

#[tokio::test]
async fn a_missing_object_is_none_until_it_appears() {
    let rig = rig().await;
    let cache = ObjectCache::new(rig.api.clone());
    let mut changes = cache.changed();
    cache.acquire(&uid("u1"), [key("m")]);
    assert_eq!(value(&cache, "m").await, None);
    assert_eq!(soon(changes.recv()).await.unwrap(), key("m"));
    soon(rig.fake.until(|fake| fake.open_watches("configmaps") == 1)).await;
    rig.fake.put("configmaps", &config_map("m", "1"));
    assert_eq!(soon(changes.recv()).await.unwrap(), key("m"));
    assert_eq!(value(&cache, "m").await.as_deref(), Some("1"));
    rig.fake.remove("configmaps", "default", "m");
    assert_eq!(soon(changes.recv()).await.unwrap(), key("m"));
    assert_eq!(value(&cache, "m").await, None);
}

#[tokio::test]
async fn what_is_known_is_served_while_the_server_is_away() {
    let mut rig = rig().await;
    rig.fake.put("configmaps", &config_map("m", "1"));
    let cache = ObjectCache::new(rig.api.clone());
    let mut changes = cache.changed();
    cache.acquire(&uid("u1"), [key("m")]);
    assert_eq!(value(&cache, "m").await.as_deref(), Some("1"));
    soon(changes.recv()).await.unwrap();
    rig.fake.stop().await;
    assert_eq!(value(&cache, "m").await.as_deref(), Some("1"));
    cache.acquire(&uid("u2"), [key("other")]);
    let error = soon(cache.get_config_map("default", "other")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable);
    rig.fake.put("configmaps", &config_map("m", "2"));
    rig.fake.start_again().await;
    let mut reported = std::collections::BTreeSet::new();
    while reported.len() < 2 {
        reported.insert(soon(changes.recv()).await.unwrap().name);
    }
    assert_eq!(value(&cache, "m").await.as_deref(), Some("2"));
    assert_eq!(value(&cache, "other").await, None);
}

#[tokio::test]
async fn an_immutable_object_is_not_watched() {
    let rig = rig().await;
    let mut map = config_map("m", "1");
    map["immutable"] = json!(true);
    rig.fake.put("configmaps", &map);
    let cache = ObjectCache::new(rig.api.clone());
    cache.acquire(&uid("u1"), [key("m")]);
    assert_eq!(value(&cache, "m").await.as_deref(), Some("1"));
    // A second object, fully followed, shows that the first had its chance.
    rig.fake.put("configmaps", &config_map("n", "1"));
    cache.acquire(&uid("u2"), [key("n")]);
    soon(rig.fake.until(|fake| fake.open_watches("configmaps") == 1)).await;
    assert!(rig.fake.seen("watch", "configmaps").iter().all(|seen| seen.query.contains("metadata.name%3Dn")));
    assert_eq!(value(&cache, "m").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_fault_of_the_first_fetch_is_told_and_then_overcome() {
    let rig = rig().await;
    rig.fake
        .put("secrets", &json!({"metadata": {"name": "s", "namespace": "default"}, "data": {"k": "dg=="}}));
    rig.fake.fault("get", "secrets", 2, Fault::Status(500));
    let cache = ObjectCache::new(rig.api.clone());
    let mut changes = cache.changed();
    let key = ObjectKey { kind: ObjectKind::Secret, ..key("s") };
    cache.acquire(&uid("u1"), [key.clone()]);
    assert_eq!(soon(changes.recv()).await.unwrap(), key);
    let secret = soon(cache.get_secret("default", "s")).await.unwrap().unwrap();
    assert_eq!(secret.data.as_ref().unwrap()["k"].0, b"v");
}

#[tokio::test]
async fn services_are_kept_small_and_seen_by_namespace() {
    let rig = rig().await;
    let service = |namespace: &str, name: &str, ip: &str| json!({"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterIP": ip, "ports": [{"port": 80}]}});
    rig.fake.put("services", &service("default", "kubernetes", "10.0.0.1"));
    rig.fake.put("services", &service("default", "web", "10.0.0.2"));
    rig.fake.put("services", &service("shop", "cart", "10.0.0.3"));
    rig.fake.put("services", &service("shop", "headless", "None"));
    let cache = ServiceCache::start(rig.api.clone());
    soon(cache.synced()).await;
    let names = |namespace: &str| -> Vec<String> {
        cache.visible_in(namespace).iter().map(|service| service.name.clone()).collect()
    };
    assert_eq!(names("shop"), ["cart", "kubernetes"]);
    assert_eq!(names("default"), ["kubernetes", "web"]);
    assert_eq!(names("empty"), ["kubernetes"]);
}

#[tokio::test]
async fn runtime_classes_are_followed_from_the_first_that_is_asked_for() {
    let rig = rig().await;
    let cache = RuntimeClassCache::new(rig.api.clone());
    assert_eq!(rig.fake.all_requests(), 0, "a node without such pods asks for none");
    assert!(soon(cache.get("sandboxed")).await.unwrap().is_none());
    let class = |handler: &str| json!({"metadata": {"name": "sandboxed"}, "handler": handler});
    rig.fake.put("runtimeclasses", &class("runsc"));
    assert_eq!(soon(cache.get("sandboxed")).await.unwrap().unwrap().handler, "runsc");
    // Made anew with another handler.
    soon(rig.fake.until(|fake| fake.open_watches("runtimeclasses") == 1)).await;
    rig.fake.remove("runtimeclasses", "", "sandboxed");
    rig.fake.put("runtimeclasses", &class("kata"));
    soon(async {
        while cache.get("sandboxed").await.unwrap().is_none_or(|found| found.handler != "kata") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let asked = rig.fake.requests("get", "runtimeclasses");
    soon(cache.get("sandboxed")).await.unwrap();
    assert_eq!(rig.fake.requests("get", "runtimeclasses"), asked, "what is followed is not asked for");
}
