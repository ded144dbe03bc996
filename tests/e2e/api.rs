//! The node's HTTPS API: kubectl through a real apiserver, over WebSockets and over SPDY, and callers who come straight to
//! the node's door with good, bad and no credentials.

mod access;
mod hostile;
mod ports;
mod pressure;
mod standalone;
mod streams;
mod views;

use std::time::Duration;

use anyhow::{Result, ensure};
use keelson_tests::cluster::Cluster;
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::kubectl::Kubectl;
use keelson_tests::pods::{pod, shell, sleeper};
use keelson_tests::suite::Suite;
use serde_json::json;

/// How long one thing may take; ten times what it does.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The pod that most cases use.
pub const POD: &str = "target";

pub async fn body(suite: &mut Suite) -> Result<()> {
    let cluster = Cluster::start(suite.dir(), Extent::WithoutScheduler).await?;
    let config = json!({
        "enableSystemLogQuery": true,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true, "cacheTTL": "1s"},
            "x509": {"clientCAFile": cluster.plane.ca_file()},
        },
        "authorization": {"mode": "Webhook", "webhook": {"cacheAuthorizedTTL": "1s", "cacheUnauthorizedTTL": "1s"}},
    });
    let mut node = cluster.join("node", 1, Kind::V2, config).await?;
    let serving = "echo serving; echo page > /www/index.html; exec httpd -f -p 8080 -h /www";
    let mut web = shell("web", serving);
    web["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    let containers = json!([sleeper("main"), web]);
    cluster.pods().create(pod(POD, node.agent.node(), containers)).await?;
    cluster.pods().wait_ready(POD, LIMIT).await?;

    access::run(suite, &cluster, &node).await;
    views::run(suite, &cluster, &node).await;
    hostile::run(suite, &cluster, &node).await;
    pressure::run(suite, &cluster, &node).await;
    standalone::run(suite, &cluster).await;
    for (protocol, kubectl) in kubectls(&cluster) {
        streams::run(suite, &cluster, &node, protocol, &kubectl).await;
        ports::run(suite, &kubectl, protocol).await;
    }
    older_runtime(suite, &cluster).await;
    node.agent.check_alive()
}

/// The distribution's containerd has a streaming server of its own age.
async fn older_runtime(suite: &mut Suite, cluster: &Cluster) {
    let streams = async {
        let node = cluster.join("older", 2, Kind::Distribution, json!({})).await?;
        let pods = cluster.pods();
        pods.create(pod("aged", node.agent.node(), json!([sleeper("main")]))).await?;
        pods.wait_ready("aged", LIMIT).await?;
        for (protocol, kubectl) in kubectls(cluster) {
            let out = kubectl.run(&["exec", "aged", "--", "sh", "-c", "echo from $((6 * 7))"]).await?;
            ensure!(out == "from 42\n", "{protocol}: {out:?}");
        }
        pods.delete("aged", LIMIT).await
    };
    suite.case("exec works on an older runtime too", LIMIT * 2, streams).await;
}

fn kubectls(cluster: &Cluster) -> [(&'static str, Kubectl); 2] {
    [("WebSocket", cluster.kubectl.clone()), ("SPDY", cluster.kubectl.over_spdy())]
}
