use keelson_fakes::api::Fault;

use super::*;
use crate::TrustBundleCache;

fn bundle(name: &str, pem: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"signerName": "s", "trustBundle": pem}})
}

async fn names(cache: &TrustBundleCache) -> Vec<String> {
    soon(cache.get()).await.unwrap().iter().map(|b| format!("{}={}", b.name, b.pem)).collect()
}

#[tokio::test]
async fn an_apiserver_that_serves_no_trust_bundles_is_named_with_what_it_takes() {
    let rig = rig().await;
    let cache = TrustBundleCache::new(rig.api.clone());
    let error = soon(cache.get()).await.unwrap_err().to_string();
    assert!(
        error.contains("does not serve") && error.contains("feature gates ClusterTrustBundle"),
        "{error}"
    );
    rig.fake.serve("/apis/certificates.k8s.io/v1beta1", "certificatesigningrequests");
    assert!(soon(cache.get()).await.is_err(), "it serves another resource of the group");
    rig.fake.serve("/apis/certificates.k8s.io/v1alpha1", "clustertrustbundles");
    assert_eq!(names(&cache).await, Vec::<String>::new());
}

#[tokio::test]
async fn trust_bundles_are_followed_from_the_first_question_on_and_their_changes_are_told() {
    let rig = rig().await;
    rig.fake.serve("/apis/certificates.k8s.io/v1beta1", "clustertrustbundles");
    rig.fake.put("clustertrustbundles", &bundle("one", "1"));
    let cache = TrustBundleCache::new(rig.api.clone());
    assert_eq!(rig.fake.requests("list", "clustertrustbundles"), 0, "nobody has asked");
    assert_eq!(names(&cache).await, ["one=1"]);
    assert_eq!(names(&cache).await, ["one=1"]);
    assert_eq!(rig.fake.requests("list", "clustertrustbundles"), 1);
    let mut news = cache.news();
    soon(rig.fake.until(|fake| fake.open_watches("clustertrustbundles") == 1)).await;
    rig.fake.put("clustertrustbundles", &bundle("one", "2"));
    soon(news.changed()).await;
    assert_eq!(names(&cache).await, ["one=2"]);
    rig.fake.remove("clustertrustbundles", "", "one");
    soon(news.changed()).await;
    assert_eq!(names(&cache).await, Vec::<String>::new());
}

#[tokio::test]
async fn what_keeps_trust_bundles_away_is_said_and_they_come_when_it_is_over() {
    let rig = rig().await;
    rig.fake.serve("/apis/certificates.k8s.io/v1beta1", "clustertrustbundles");
    rig.fake.put("clustertrustbundles", &bundle("one", "1"));
    rig.fake.fault("list", "clustertrustbundles", usize::MAX, Fault::Status(403));
    let cache = TrustBundleCache::new(rig.api.clone());
    let mut news = cache.news();
    let error = soon(cache.get()).await.unwrap_err().to_string();
    assert!(error.contains("clustertrustbundles"), "{error}");
    rig.fake.clear_faults();
    soon(async {
        while cache.get().await.is_err() {
            news.changed().await;
        }
    })
    .await;
    assert_eq!(names(&cache).await, ["one=1"]);
}
