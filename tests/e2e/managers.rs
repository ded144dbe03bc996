//! CPUs of their own for those who ask for them: what the kernel says, over crashes, lost files, and a kubelet in between.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_require::Missing;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::parts::Part;
use keelson_tests::pods::{pod, sleeper};
use keelson_tests::runtime::Seen;
use keelson_tests::suite::Suite;
use keelson_tests::wait::{until, until_true};
use keelson_tests::{built, objects};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const STATE: &str = "cpu_manager_state";

pub async fn body(suite: &mut Suite) -> Result<()> {
    let cpus = std::thread::available_parallelism()?.get();
    if cpus < 2 {
        let missing = Missing::new("a second CPU", "one is reserved, and one has to be left to give away");
        suite.leave_out("CPUs of their own", &missing);
        return Ok(());
    }
    let cluster = Cluster::start(suite.dir(), Extent::WithoutScheduler).await?;
    // All but the last are reserved, so that the case is the same on every machine.
    let last = cpus - 1;
    let config = json!({
        "cpuManagerPolicy": "static", "reservedSystemCPUs": list(0, last - 1), "cpuManagerReconcilePeriod": "1s",
    });
    let mut node = cluster.join("node", 1, Kind::V2, config).await?;
    let cpus = Cpus { all: list(0, last), shared: list(0, last - 1), own: last.to_string() };
    let case = "a Guaranteed pod has its CPU for itself, and the others have the rest";
    suite.case(case, LIMIT, given(&cluster, &node, &cpus)).await;
    let case = "an agent that is killed, and one that has lost its file, move nobody";
    suite.case(case, LIMIT * 2, crashes(&cluster, &mut node, &cpus)).await;
    match Part::Kubelet.available() {
        Ok(()) => {
            let kubelet = Part::Kubelet.program()?;
            let case = "a kubelet with the static policy takes over and hands back, and nobody is moved";
            let took_over = async {
                node.agent.stop().await?;
                node.agent.hand_over(&kubelet).await?;
                let done = handed_over(&cluster, &node, &cpus).await;
                node.agent.stop().await?;
                node.agent.hand_over(&built::agent()?).await?;
                done?;
                settled(&node, &cpus).await
            };
            suite.case(case, LIMIT * 3, took_over).await;
        }
        Err(missing) => suite.leave_out("a kubelet takes over", &missing),
    }
    suite
        .case("what a pod had is everybody's when it is gone", LIMIT, given_back(&cluster, &node, &cpus))
        .await;
    cluster.reset(suite, &mut node).await;
    Ok(())
}

/// As the kernel writes them.
struct Cpus {
    all: String,
    shared: String,
    own: String,
}

fn list(first: usize, last: usize) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn guaranteed(name: &str, node: &Node) -> Value {
    let mut container = sleeper("main");
    let list = json!({"cpu": "1", "memory": "32Mi"});
    container["resources"] = json!({"requests": list, "limits": list});
    pod(name, node.agent.node(), json!([container]))
}

/// Where the kernel lets a pod's container run.
async fn allowed(node: &Node, pod: &str) -> Result<String> {
    let containers = node.runtime.containers_of(pod).await?;
    let running = containers.iter().find(|c| c.running).with_context(|| format!("{pod} does not run"))?;
    let process = node.runtime.process_of(&running.id).await?;
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(line.context("the kernel does not say where it may run")?.trim().to_owned())
}

async fn wait_allowed(node: &Node, pod: &str, cpus: &str) -> Result<()> {
    until_true(&format!("{pod} runs on {cpus}"), LIMIT, async || {
        let now = allowed(node, pod).await?;
        ensure!(now == cpus, "it may run on {now}");
        Ok(true)
    })
    .await
}

/// `own` is where it was put, and `calm` where it was sent.
async fn settled(node: &Node, cpus: &Cpus) -> Result<()> {
    wait_allowed(node, "own", &cpus.own).await?;
    wait_allowed(node, "calm", &cpus.shared).await
}

fn state(node: &Node) -> Result<Value> {
    Ok(serde_json::from_str(&std::fs::read_to_string(node.agent.root_dir().join(STATE))?)?)
}

async fn given(cluster: &Cluster, node: &Node, cpus: &Cpus) -> Result<()> {
    let allocatable = cluster.node_object(node.agent.node()).await?.status.and_then(|s| s.allocatable);
    let cpu = allocatable.and_then(|a| a.get("cpu").map(|q| q.0.clone()));
    ensure!(cpu.as_deref() == Some("1"), "allocatable are {cpu:?}");
    let pods = cluster.pods();
    pods.create(pod("calm", node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready("calm", LIMIT).await?;
    wait_allowed(node, "calm", &cpus.all).await?;
    pods.create(guaranteed("own", node)).await?;
    pods.wait_ready("own", LIMIT).await?;
    // Before it has run a single instruction: it was made there.
    let now = allowed(node, "own").await?;
    ensure!(now == cpus.own, "it may run on {now}");
    settled(node, cpus).await?;
    pods.create(pod("late", node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready("late", LIMIT).await?;
    let now = allowed(node, "late").await?;
    ensure!(now == cpus.shared, "one that came later may run on {now}");
    pods.delete("late", LIMIT).await
}

async fn crashes(cluster: &Cluster, node: &mut Node, cpus: &Cpus) -> Result<()> {
    let before = running(node).await?;
    let file = node.agent.root_dir().join(STATE);
    let good = std::fs::read_to_string(&file)?;
    for what in [None, Some(&good[..good.len() / 2]), Some("{}"), Some("")] {
        node.agent.kill()?;
        if let Some(text) = what {
            std::fs::write(&file, text)?;
        }
        node.agent.restart().await?;
        until_true("the file is whole again", LIMIT, async || {
            let now = std::fs::read_to_string(&file)?;
            ensure!(now == good, "{now}, not {good}");
            Ok(true)
        })
        .await
        .with_context(|| format!("after {what:?}"))?;
        settled(node, cpus).await?;
        ensure!(running(node).await? == before, "a container was restarted after {what:?}");
    }
    // Killed while somebody leaves and others are to be told.
    let pods = cluster.pods();
    pods.api.delete("own", &kube::api::DeleteParams::default()).await?;
    node.agent.kill()?;
    node.agent.restart().await?;
    wait_allowed(node, "calm", &cpus.all).await?;
    objects::wait_gone(&pods.api, "own", None, LIMIT).await?;
    pods.create(guaranteed("own", node)).await?;
    until("it is to have its CPU", LIMIT, async || {
        Ok(state(node)?["entries"].as_object().filter(|entries| !entries.is_empty()).map(|_| ()))
    })
    .await?;
    node.agent.kill()?;
    node.agent.restart().await?;
    pods.wait_ready("own", LIMIT).await?;
    settled(node, cpus).await
}

async fn running(node: &Node) -> Result<Vec<Seen>> {
    Ok(node.runtime.containers().await?.into_iter().filter(|c| c.running).collect())
}

/// With a kubelet in charge.
async fn handed_over(cluster: &Cluster, node: &Node, cpus: &Cpus) -> Result<()> {
    let (before, file) = (running(node).await?, state(node)?);
    cluster.wait_node_ready(node.agent.node(), true, LIMIT).await?;
    let pods = cluster.pods();
    // Once it has started one of its own, it has looked at those that it found.
    pods.create(pod("guest", node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready("guest", LIMIT).await?;
    wait_allowed(node, "guest", &cpus.shared).await?;
    settled(node, cpus).await?;
    pods.delete("guest", LIMIT).await?;
    ensure!(running(node).await? == before, "the kubelet restarted a container");
    ensure!(state(node)? == file, "the kubelet gives CPUs to others: {} and {file}", state(node)?);
    Ok(())
}

async fn given_back(cluster: &Cluster, node: &Node, cpus: &Cpus) -> Result<()> {
    cluster.pods().delete("own", LIMIT).await?;
    wait_allowed(node, "calm", &cpus.all).await?;
    ensure!(state(node)?.get("entries").is_none(), "{}", state(node)?);
    cluster.pods().delete("calm", LIMIT).await
}
