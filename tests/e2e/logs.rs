//! Containers' logs, as kubectl shows them through an apiserver, and as they lie on disk.

mod flags;
mod hostile;
mod rotation;

use std::time::Duration;

use anyhow::{Context, Result};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::suite::Suite;
use serde_json::json;

pub const LIMIT: Duration = Duration::from_secs(60);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let cluster = Cluster::start(suite.dir(), Extent::WithoutScheduler).await?;
    let lines = rotation::lines();
    let config = json!({
        "containerLogMaxSize": rotation::max_size(lines), "containerLogMaxFiles": 4,
        "containerLogMonitorInterval": "3s",
    });
    let mut node = cluster.join("node", 1, Kind::V2, config).await?;
    flags::run(suite, &cluster, &mut node).await;
    hostile::run(suite, &cluster, &mut node).await;
    rotation::run(suite, &cluster, &mut node, lines).await;
    node.agent.check_alive()
}

/// The directory of a container's logs.
pub async fn log_dir(
    cluster: &Cluster,
    node: &Node,
    pod: &str,
    container: &str,
) -> Result<std::path::PathBuf> {
    let pod = cluster.pods().get(pod).await?;
    let uid = keelson_tests::pods::uid(&pod);
    let name = pod.metadata.name.context("a pod without a name")?;
    Ok(node.agent.pod_logs().join(format!("default_{name}_{uid}")).join(container))
}
