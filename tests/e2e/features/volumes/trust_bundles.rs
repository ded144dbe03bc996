//! Certificates of authorities that the cluster hands to its pods.

use std::time::Duration;

use anyhow::{Result, ensure};
use keelson_tests::certs::Authority;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::leftovers;
use keelson_tests::pods::{pod, sleeper};
use keelson_tests::suite::{Suite, folder};
use keelson_tests::wait::until_true;
use serde_json::json;

use super::super::{LIMIT, exec};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    let dir = suite.dir().to_owned();
    let case =
        "trust bundles are shown once each, by name or signer, and followed; a missing one is waited for";
    suite.case(case, LIMIT * 3, bundles(cluster, node, &dir)).await;
    cluster.reset(suite, node).await;
}

/// A bundle of the authorities with these names.
async fn put(cluster: &Cluster, dir: &std::path::Path, name: &str, signer: &str, of: &[&str]) -> Result<()> {
    let mut pem = String::new();
    for authority in of {
        let dir = folder(dir, &format!("authority-{authority}"))?;
        let known = std::fs::read_to_string(dir.join("kept.pem"));
        let text = match known {
            Ok(text) => text,
            Err(_) => {
                let text = std::fs::read_to_string(Authority::new(&dir)?.ca_file())?;
                std::fs::write(dir.join("kept.pem"), &text)?;
                text
            }
        };
        pem.push_str(&text);
    }
    let mut spec = json!({"trustBundle": pem});
    if !signer.is_empty() {
        spec["signerName"] = json!(signer);
    }
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
        "metadata": {"name": name, "labels": {"stage": "live"}}, "spec": spec,
    });
    cluster.kubectl.apply(&object.to_string()).await
}

async fn bundles(cluster: &Cluster, node: &Node, dir: &std::path::Path) -> Result<()> {
    put(cluster, dir, "roots", "", &["a", "b"]).await?;
    put(cluster, dir, "example.org:signer:one", "example.org/signer", &["b", "c"]).await?;
    let mut container = sleeper("main");
    container["volumeMounts"] = json!([{"name": "trust", "mountPath": "/trust"}]);
    let signer = json!({"matchLabels": {"stage": "live"}});
    let mut trusting = pod("trusting", node.agent.node(), json!([container]));
    trusting["spec"]["volumes"] = json!([{"name": "trust", "projected": {"sources": [
        {"clusterTrustBundle": {"name": "roots", "path": "roots.pem"}},
        {"clusterTrustBundle": {"signerName": "example.org/signer", "labelSelector": signer, "path": "by/signer.pem"}},
        {"clusterTrustBundle": {"name": "absent", "path": "absent.pem", "optional": true}},
        {"clusterTrustBundle": {"name": "late", "path": "late.pem"}},
    ]}}]);
    let pods = cluster.pods();
    pods.create(trusting).await?;
    until_true("FailedMount names the missing bundle", LIMIT, async || {
        let events = pods.events_about("trusting").await?;
        let names =
            |text: Option<String>| text.is_some_and(|m| m.contains("clustertrustbundle \"late\" not found"));
        Ok(events.into_iter().any(|e| e.reason.as_deref() == Some("FailedMount") && names(e.message)))
    })
    .await?;
    put(cluster, dir, "late", "", &["c"]).await?;
    pods.wait_ready("trusting", LIMIT).await?;
    let count = "cd /trust && grep -c BEGIN roots.pem by/signer.pem late.pem; wc -c <absent.pem";
    let said = exec(node, "trusting", "main", count).await?;
    ensure!(said == "roots.pem:2\nby/signer.pem:2\nlate.pem:1\n0\n", "the files hold {said:?}");
    // One more of the same signer, which shares an authority with the first.
    put(cluster, dir, "example.org:signer:two", "example.org/signer", &["a", "b"]).await?;
    cluster.kubectl.run(&["delete", "clustertrustbundle", "late"]).await?;
    until_true("the files follow", Duration::from_secs(60), async || {
        Ok(exec(node, "trusting", "main", "grep -c BEGIN /trust/by/signer.pem")
            .await
            .is_ok_and(|n| n == "3\n"))
    })
    .await?;
    ensure!(
        exec(node, "trusting", "main", "grep -c BEGIN /trust/late.pem").await? == "1\n",
        "what runs keeps what it has"
    );
    pods.delete("trusting", LIMIT).await?;
    for name in ["roots", "example.org:signer:one", "example.org:signer:two"] {
        cluster.kubectl.run(&["delete", "clustertrustbundle", name]).await?;
    }
    leftovers::wait_clean(node, LIMIT).await
}
