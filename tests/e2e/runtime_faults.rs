//! containerd stopped, restarted and hung: the node says so, its pods run on, and it recovers without help.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::leftovers;
use keelson_tests::pods::{pod, sleeper};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(60);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let cluster = Cluster::start(suite.dir(), Extent::WithoutScheduler).await?;
    for (number, kind, name) in [(1, Kind::V2, "events"), (2, Kind::Distribution, "relist")] {
        // A hung runtime is only noticed when a call has taken too long; two minutes would be too long for a test.
        let mut node = cluster.join(name, number, kind, json!({"runtimeRequestTimeout": "15s"})).await?;
        cluster.pods().create(pod("steady", name, json!([sleeper("main")]))).await?;
        cluster.pods().wait_ready("steady", LIMIT).await?;
        let case = format!("{name}: restarted, and the node stays Ready");
        suite.case(&case, LIMIT * 3, restarted(&cluster, &mut node)).await;
        // Half a minute each until the node gives it up, so one for each generation.
        if kind == Kind::V2 {
            let case = format!("{name}: hung and woken");
            suite.case(&case, LIMIT * 3, hung(&cluster, &mut node)).await;
        } else {
            let case = format!("{name}: stopped and started again");
            suite.case(&case, LIMIT * 3, stopped(&cluster, &mut node)).await;
        }
        let case = format!("{name}: without a network for pods");
        suite.case(&case, LIMIT * 3, network_missing(&cluster, &mut node)).await;
        let case = format!("{name}: not there when the agent starts");
        suite.case(&case, LIMIT * 3, absent_at_start(&cluster, &mut node)).await;
        cluster.pods().delete("steady", LIMIT).await?;
        leftovers::wait_clean(&node, Duration::from_secs(20)).await?;
        node.agent.stop().await?;
    }
    Ok(())
}

/// A runtime that is away for a moment is no reason to mark every pod of the node as not ready.
async fn restarted(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let steady = Steady::of(node).await?;
    let before = cluster.wait_node_ready(node.agent.node(), true, LIMIT).await?;
    node.containerd.stop().await?;
    logged(node, "the runtime did not answer").await?;
    node.containerd.launch().await?;
    node.reconnect().await?;
    logged(node, "the runtime answers again").await?;
    recovered(cluster, node, &steady).await?;
    let after = cluster.wait_node_ready(node.agent.node(), true, LIMIT).await?;
    ensure!(
        after.last_transition_time == before.last_transition_time,
        "the node was not ready in between: {before:?}, {after:?}"
    );
    Ok(())
}

async fn logged(node: &Node, words: &str) -> Result<()> {
    until_true(&format!("the agent says: {words}"), LIMIT, async || Ok(node.agent.log().contains(words)))
        .await
}

async fn stopped(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let steady = Steady::of(node).await?;
    node.containerd.stop().await?;
    not_ready(cluster, node, "runtime").await?;
    steady.still_runs()?;
    node.containerd.launch().await?;
    node.reconnect().await?;
    recovered(cluster, node, &steady).await
}

async fn hung(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let steady = Steady::of(node).await?;
    node.containerd.freeze()?;
    let said = not_ready(cluster, node, "runtime").await;
    steady.still_runs()?;
    node.containerd.thaw()?;
    said?;
    recovered(cluster, node, &steady).await
}

async fn network_missing(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let steady = Steady::of(node).await?;
    let conf = node.containerd.network().take_away()?;
    let said = not_ready(cluster, node, "network").await;
    let pods = cluster.pods();
    pods.create(pod("early", node.agent.node(), json!([sleeper("main")]))).await?;
    let told = until_true("the pod's events say what it waits for", LIMIT, async || {
        Ok(pods.event_reasons("early").await?.iter().any(|r| r == "NetworkNotReady"))
    })
    .await;
    node.containerd.network().write(&conf)?;
    said?;
    told?;
    pods.wait_ready("early", LIMIT).await?;
    pods.delete("early", LIMIT).await?;
    recovered(cluster, node, &steady).await
}

async fn absent_at_start(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let steady = Steady::of(node).await?;
    node.agent.kill()?;
    node.containerd.stop().await?;
    node.agent.launch()?;
    not_ready(cluster, node, "runtime").await?;
    steady.still_runs()?;
    node.containerd.launch().await?;
    node.reconnect().await?;
    recovered(cluster, node, &steady).await
}

/// Waits for Ready to be False with a message that names the culprit. The agent itself must be alive.
async fn not_ready(cluster: &Cluster, node: &mut Node, culprit: &str) -> Result<()> {
    let condition = cluster.wait_node_ready(node.agent.node(), false, LIMIT).await?;
    node.agent.check_alive()?;
    ensure!(condition.reason.as_deref() == Some("KubeletNotReady"), "the reason is {:?}", condition.reason);
    let message = condition.message.unwrap_or_default();
    ensure!(message.to_lowercase().contains(culprit), "the message does not name the {culprit}: {message:?}");
    Ok(())
}

/// Ready again; the old pod untouched; a new one starts and goes.
async fn recovered(cluster: &Cluster, node: &Node, steady: &Steady) -> Result<()> {
    cluster.wait_node_ready(node.agent.node(), true, LIMIT).await?;
    let pods = cluster.pods();
    pods.create(pod("fresh", node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready("fresh", LIMIT).await?;
    pods.delete("fresh", LIMIT).await?;
    pods.wait_ready("steady", LIMIT).await?;
    steady.still_runs()?;
    let now = Steady::of(node).await?;
    ensure!(now.container == steady.container, "the steady pod got a new container");
    Ok(())
}

/// The one pod that runs through everything.
struct Steady {
    container: String,
    process: u32,
}

impl Steady {
    async fn of(node: &Node) -> Result<Self> {
        let seen = node.runtime.containers_of("steady").await?;
        let container = seen.into_iter().find(|c| c.running).context("the steady pod does not run")?.id;
        let process = node.runtime.process_of(&container).await?;
        Ok(Self { container, process })
    }

    fn still_runs(&self) -> Result<()> {
        let state = std::fs::read_to_string(format!("/proc/{}/status", self.process)).unwrap_or_default();
        ensure!(
            state.contains("State:\tS") || state.contains("State:\tR"),
            "process {} is gone",
            self.process
        );
        Ok(())
    }
}
