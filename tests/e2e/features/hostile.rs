//! Pods that would have the agent hold more than it has: in their specs, in their files, in what they write to disk. The
//! agent has so little memory here that the kernel ends it if one of them succeeds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::leftovers;
use keelson_tests::pods::{SLEEP, pod, restarts, shell, sleeper};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until;
use serde_json::{Value, json};

use super::LIMIT;

/// What the agent may take, its share of the kernel's caches included.
const MEMORY: u64 = 32 << 20;

/// Names of 240 bytes each: more than the agent's memory, were they read at once.
const FILES: u64 = 100_000;

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    let case = "no pod makes the agent hold more than 32 MiB";
    suite.case(case, LIMIT * 8, small_agent(cluster, node)).await;
    node.agent.limit_memory(None);
    cluster.reset(suite, node).await;
}

async fn small_agent(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    let mut probed = sleeper("main");
    probed["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    pods.create(pod("bystander", node.agent.node(), json!([probed]))).await?;
    pods.wait_ready("bystander", LIMIT).await?;
    node.agent.stop().await?;
    node.agent.limit_memory(Some(MEMORY));
    node.agent.restart().await?;
    let before = steadiness(&pods.get("bystander").await?);
    let agent = node.agent.process_id();

    let others = &*node;
    tokio::try_join!(
        environment(cluster, others),
        items(cluster, others),
        hosts_file(cluster, others),
        many_files(cluster, others)
    )?;

    node.agent.check_alive()?;
    ensure!(node.agent.process_id() == agent, "the agent was started again");
    let after = steadiness(&pods.get("bystander").await?);
    ensure!(before == after, "the bystander was disturbed: {before:?}, then {after:?}");
    pods.delete("bystander", LIMIT).await?;
    leftovers::wait_clean(node, Duration::from_secs(30)).await?;
    node.agent.stop().await?;
    node.agent.limit_memory(None);
    node.agent.restart().await
}

/// What changes when a pod's readiness is interrupted: since when it is ready, and which container runs.
fn steadiness(pod: &Pod) -> Value {
    let status = json!(pod.status);
    let ready = status["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Ready");
    json!([
        ready.map(|c| [c["status"].clone(), c["lastTransitionTime"].clone()]),
        status["containerStatuses"]
    ])
}

/// 13 KB of spec that are a terabyte of values.
async fn environment(cluster: &Cluster, node: &Node) -> Result<()> {
    let mut bomb = sleeper("main");
    let mut env = vec![json!({"name": "V0", "value": "x".repeat(1000)})];
    for step in 1..=3 {
        env.push(json!({"name": format!("V{step}"), "value": format!("$(V{})", step - 1).repeat(1000)}));
    }
    bomb["env"] = json!(env);
    let pods = cluster.pods();
    pods.create(pod("values", node.agent.node(), json!([bomb]))).await?;
    let waiting = pods.wait_waiting("values", "CreateContainerConfigError", LIMIT).await?;
    let message = json!(waiting.status)["containerStatuses"][0]["state"]["waiting"]["message"].clone();
    let named = message.as_str().is_some_and(|m| m.contains("variable V1") && m.contains("131072 bytes"));
    ensure!(named, "the message is {message}");
    pods.delete("values", LIMIT).await
}

/// One object of 900 KB under 20,000 names.
async fn items(cluster: &Cluster, node: &Node) -> Result<()> {
    let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "big"},
                        "stringData": {"k": "x".repeat(900_000)}});
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> =
        kube::Api::namespaced(cluster.client.clone(), "default");
    secrets.create(&kube::api::PostParams::default(), &serde_json::from_value(object)?).await?;
    let items: Vec<Value> = (0..20_000).map(|n| json!({"key": "k", "path": n.to_string()})).collect();
    let mut copies = pod("copies", node.agent.node(), json!([sleeper("main")]));
    copies["spec"]["volumes"] = json!([{"name": "many", "secret": {"secretName": "big", "items": items}}]);
    let pods = cluster.pods();
    pods.create(copies).await?;
    until("FailedMount names the bound", LIMIT, async || {
        let events = pods.events_about("copies").await?;
        let said = |e: &k8s_openapi::api::core::v1::Event| {
            let message = e.message.as_deref().unwrap_or_default();
            e.reason.as_deref() == Some("FailedMount")
                && message.contains("\"many\"")
                && message.contains("33554432 bytes")
        };
        Ok(events.iter().any(said).then_some(()))
    })
    .await?;
    pods.delete("copies", LIMIT).await?;
    secrets.delete("big", &kube::api::DeleteParams::default()).await?;
    Ok(())
}

/// A hosts file of 6 GiB at each start, and one that fills the disk.
async fn hosts_file(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let grown = shell("grown", "truncate -s 6G /etc/hosts; exit 1");
    let filling = shell("filling", &format!("head -c 8000000 /dev/zero >/dev/termination-log; {SLEEP}"));
    pods.create(pod("hosts", node.agent.node(), json!([grown, filling]))).await?;
    pods.wait("hosts", "started again over its own hosts file", LIMIT, |p| restarts(p, "grown") >= 1).await?;
    until("what it wrote counts as ephemeral storage", LIMIT, async || {
        let stats = pod_stats(cluster, node, "hosts").await?;
        let used = stats["ephemeral-storage"]["usedBytes"].as_u64().unwrap_or_default();
        Ok((used >= 8_000_000).then_some(()))
    })
    .await?;
    pods.delete("hosts", LIMIT).await
}

/// More names than the agent has memory for, and directories deeper than it has descriptors for.
async fn many_files(cluster: &Cluster, node: &Node) -> Result<()> {
    let line = format!(
        "cd /data; d=0; while [ $d -lt 300 ]; do mkdir d; cd d; d=$((d+1)); done; cd /data; \
         p={}; n=0; while [ $n -lt {FILES} ]; do : >$p$n; n=$((n+1)); done; touch /tmp/done; {SLEEP}",
        "long-name-".repeat(24)
    );
    let mut crowded = shell("main", &line);
    crowded["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    crowded["readinessProbe"] = json!({"exec": {"command": ["test", "-e", "/tmp/done"]}, "periodSeconds": 1});
    let mut files = pod("files", node.agent.node(), json!([crowded]));
    files["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    let pods = cluster.pods();
    pods.create(files).await?;
    pods.wait_ready("files", LIMIT * 4).await?;
    until("all of them are counted", LIMIT * 4, async || {
        let stats = pod_stats(cluster, node, "files").await?;
        let volumes = stats["volume"].as_array().cloned().unwrap_or_default();
        let data = volumes.iter().find(|v| v["name"] == "data").context("the volume is not measured")?;
        Ok(data["inodesUsed"].as_u64().filter(|n| *n > FILES))
    })
    .await?;
    pods.delete("files", LIMIT * 4).await
}

async fn pod_stats(cluster: &Cluster, node: &Node, name: &str) -> Result<Value> {
    let path = format!("/api/v1/nodes/{}/proxy/stats/summary", node.agent.node());
    let summary: Value = serde_json::from_str(&cluster.kubectl.run(&["get", "--raw", &path]).await?)?;
    let mut pods = summary["pods"].as_array().into_iter().flatten();
    pods.find(|p| p["podRef"]["name"] == name).cloned().with_context(|| format!("{name} is not measured"))
}
