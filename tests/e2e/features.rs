//! What a pod can ask for, one by one, on one node: images, volumes and environment, probes and hooks, restarts, identity
//! and limits.

mod host;
mod hostile;
mod images;
mod lifecycle;
mod limits;
mod node;
mod probes;
mod restarts;
mod volumes;

use std::time::Duration;

use anyhow::{Context, Result};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::registry::{self, Registry};
use keelson_tests::suite::Suite;
use serde_json::json;

/// How long one thing may take; ten times what it does.
pub const LIMIT: Duration = Duration::from_secs(45);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let cluster = Cluster::start(suite.dir(), Extent::WithoutScheduler).await?;
    let config = json!({
        "syncFrequency": "5s", "volumeStatsAggPeriod": "2s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "9s"},
    });
    let mut node = cluster.join("node", 1, Kind::V2, config).await?;
    volumes::run(suite, &cluster, &mut node).await;
    probes::run(suite, &cluster, &mut node).await;
    restarts::run(suite, &cluster, &mut node).await;
    lifecycle::run(suite, &cluster, &mut node).await;
    limits::run(suite, &cluster, &mut node).await;
    node::run(suite, &cluster, &mut node).await;
    host::run(suite, &cluster, &mut node).await;
    hostile::run(suite, &cluster, &mut node).await;
    match keelson_require::program(registry::PROGRAM) {
        Ok(_) => {
            let server = Registry::start(suite.dir()).await?;
            node.containerd.trust_registry(server.host())?;
            images::run(suite, &cluster, &mut node, &server).await;
            volumes::images::run_with_registry(suite, &cluster, &mut node).await;
        }
        Err(missing) => suite.leave_out("images from a registry", &missing),
    }
    node.agent.check_alive()
}

/// Runs a command in a container of a pod, straight through the runtime.
pub async fn exec(node: &Node, pod: &str, container: &str, line: &str) -> Result<String> {
    let seen = node.runtime.containers_of(pod).await?;
    let id = seen.into_iter().find(|c| c.name == container && c.running).map(|c| c.id);
    let id = id.with_context(|| format!("{container} of {pod} does not run"))?;
    node.runtime.exec(&id, &["sh", "-c", line]).await
}

/// The same for a line that has the container end, which may take the line's own shell along.
pub async fn exec_to_end(node: &Node, pod: &str, container: &str, line: &str) -> Result<()> {
    match exec(node, pod, container, line).await {
        Err(e) if e.to_string().contains("ended with 137") => Ok(()),
        other => other.map(drop),
    }
}
