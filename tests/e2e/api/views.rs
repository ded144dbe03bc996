//! What the node reports about itself: pods, configuration, health, its own logs.

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::suite::Suite;
use serde_json::Value;

use super::{LIMIT, POD};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &Node) {
    suite
        .case("the node reports its port, pods, configuration and health", LIMIT, views(cluster, node))
        .await;
    suite.case("the machine's logs are shown and nothing outside of them", LIMIT, logs(cluster)).await;
}

async fn raw(cluster: &Cluster, path: &str) -> Result<String> {
    cluster.kubectl.run(&["get", "--raw", &format!("/api/v1/nodes/node/proxy{path}")]).await
}

async fn views(cluster: &Cluster, node: &Node) -> Result<()> {
    let object = cluster.node_object("node").await?;
    let port =
        object.status.and_then(|s| s.daemon_endpoints).and_then(|e| e.kubelet_endpoint).map(|e| e.port);
    ensure!(port == Some(node.agent.api_port()?.into()), "the node reports port {port:?}");

    let pods: Value = serde_json::from_str(&raw(cluster, "/pods").await?)?;
    ensure!(pods["kind"] == "PodList" && pods["apiVersion"] == "v1", "{pods}");
    let own = pods["items"].as_array().context("no items")?.iter().find(|p| p["metadata"]["name"] == POD);
    let own = own.with_context(|| format!("{POD} is not among {pods}"))?;
    ensure!(own["status"]["phase"] == "Running" && own["spec"]["nodeName"] == "node", "{own}");

    let running: Value = serde_json::from_str(&raw(cluster, "/runningpods/").await?)?;
    let own = running["items"].as_array().context("no items")?.iter().find(|p| p["metadata"]["name"] == POD);
    let containers = own.and_then(|p| p["spec"]["containers"].as_array()).context("not running")?;
    ensure!(containers.len() == 2, "{containers:?}");

    let config: Value = serde_json::from_str(&raw(cluster, "/configz").await?)?;
    ensure!(config["kubeletconfig"]["port"] == node.agent.api_port()?, "{config}");
    ensure!(raw(cluster, "/healthz").await? == "ok");
    ensure!(raw(cluster, "/healthz?verbose").await?.contains("[+]syncloop ok"));
    Ok(())
}

async fn logs(cluster: &Cluster) -> Result<()> {
    // The rig gives every suite an empty /var/log of its own.
    std::fs::create_dir_all("/var/log/api-suite")?;
    std::fs::write("/var/log/api-suite/a.log", "a line\n")?;
    std::fs::write("/var/log/quiet.log", "from its own file\n")?;
    std::os::unix::fs::symlink("/etc/passwd", "/var/log/api-suite/out")?;
    ensure!(raw(cluster, "/logs/").await?.contains("<a href=\"api-suite/\">api-suite/</a>"));
    ensure!(raw(cluster, "/logs/api-suite/a.log").await? == "a line\n");
    ensure!(raw(cluster, "/logs/?query=quiet").await? == "from its own file\n");
    ensure!(raw(cluster, "/logs/?query=/api-suite/a.log").await? == "a line\n");
    for path in ["/logs/api-suite/out", "/logs/none", "/logs/?query=/api-suite/out", "/logs/?query=--flush"] {
        let answer = raw(cluster, path).await;
        ensure!(answer.is_err(), "{path} was answered: {answer:?}");
    }
    Ok(())
}
