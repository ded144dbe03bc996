//! Thirty replicas through the real scheduler and controllers on one node, in peace and with an agent that keeps being
//! killed.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::pods::{is_ready, phase, shell, sleeper};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use keelson_tests::{leftovers, objects};
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

const REPLICAS: i32 = 30;
const ROUNDS: u32 = 25;
/// These end by themselves; all other containers are to last.
const INITS: [&str; 2] = ["first", "second"];
const LIMIT: Duration = Duration::from_secs(90);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let cluster = Cluster::start(suite.dir(), Extent::Whole).await?;
    let mut node = cluster.join("node", 1, Kind::V2, json!({})).await?;
    cluster.kubectl.apply(&deployment()).await?;
    let case = "thirty replicas become available, scaled to none nothing is left";
    suite.case(case, LIMIT * 3, in_peace(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let seed =
        std::env::var("KEELSON_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(seed_of_the_day);
    println!("kill rounds with KEELSON_SEED={seed}");
    let mut rounds = Rounds { dice: Dice(seed), left: ROUNDS, running: BTreeMap::new() };
    let case =
        "killed again and again while a deployment goes up and down, it converges and restarts nothing";
    suite.case(case, LIMIT * 4, scaling_under_fire(&cluster, &mut node, &mut rounds)).await;
    // Whatever came of that, the next case starts without the deployment's pods.
    scale(&cluster, 0).await?;
    let _ = all_gone(&cluster, &node).await;
    cluster.reset(suite, &mut node).await;
    let case = "killed again and again while pods with init containers come and go, likewise";
    suite.case(case, LIMIT * 4, pods_under_fire(&cluster, &mut node, &mut rounds)).await;
    Ok(())
}

fn deployment() -> String {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"},
        "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": "many"}},
            "template": {
                "metadata": {"labels": {"app": "many"}},
                "spec": {"terminationGracePeriodSeconds": 2, "containers": [sleeper("main")]},
            },
        },
    })
    .to_string()
}

async fn in_peace(cluster: &Cluster, node: &Node) -> Result<()> {
    scale(cluster, REPLICAS).await?;
    wait_available(cluster, REPLICAS).await?;
    let containers = node.runtime.containers().await?;
    ensure!(containers.len() == REPLICAS as usize, "{} containers for {REPLICAS} replicas", containers.len());
    scale(cluster, 0).await?;
    all_gone(cluster, node).await
}

/// Each fall and rise takes a few kills, at instants that the dice choose.
async fn scaling_under_fire(cluster: &Cluster, node: &mut Node, rounds: &mut Rounds) -> Result<()> {
    for _ in 0..2 {
        rounds.running.clear();
        scale(cluster, REPLICAS).await?;
        for _ in 0..4 {
            rounds.kill_and_restart(node, 2_500).await?;
        }
        wait_available(cluster, REPLICAS).await?;
        rounds.all_still_run(node).await?;
        nothing_restarted(cluster, node).await?;
        rounds.kill_and_restart(node, 200).await?;
        scale(cluster, 0).await?;
        for _ in 0..2 {
            rounds.kill_and_restart(node, 1_500).await?;
        }
        all_gone(cluster, node).await?;
    }
    Ok(())
}

async fn pods_under_fire(cluster: &Cluster, node: &mut Node, rounds: &mut Rounds) -> Result<()> {
    let pods = cluster.pods();
    let mut n = 0;
    while rounds.left > 0 {
        let name = format!("round-{n}");
        n += 1;
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 2,
                "initContainers": INITS.map(|name| shell(name, "exit 0")),
                "containers": [sleeper("a"), sleeper("b")],
            },
        });
        rounds.running.clear();
        pods.create(manifest).await?;
        rounds.kill_and_restart(node, 1_200).await?;
        pods.wait_ready(&name, LIMIT).await?;
        rounds.all_still_run(node).await?;
        nothing_restarted(cluster, node).await?;
        pods.api.delete(&name, &DeleteParams::default()).await?;
        if rounds.left > 0 {
            rounds.kill_and_restart(node, 600).await?;
        }
        objects::wait_gone(&pods.api, &name, None, LIMIT).await?;
        leftovers::wait_clean(node, Duration::from_secs(20)).await?;
    }
    Ok(())
}

/// The kills that are still due, and what ran when the last one came.
struct Rounds {
    dice: Dice,
    left: u32,
    /// Container id to its pod, of all that were seen running since the pods began to come up.
    running: BTreeMap<String, String>,
}

impl Rounds {
    /// Kills the agent within `window` milliseconds from now and starts it again. What ran then must run afterwards.
    async fn kill_and_restart(&mut self, node: &mut Node, window: u64) -> Result<()> {
        self.left = self.left.saturating_sub(1);
        tokio::time::sleep(Duration::from_millis(self.dice.below(window))).await;
        node.agent.kill()?;
        let seen = node.runtime.containers().await?;
        let lasting = seen.into_iter().filter(|c| c.running && !INITS.contains(&c.name.as_str()));
        self.running.extend(lasting.map(|c| (c.id, c.pod)));
        node.agent.restart().await
    }

    /// Whatever ran at a kill runs still, as the same container.
    async fn all_still_run(&self, node: &Node) -> Result<()> {
        let now = node.runtime.containers().await?;
        for (id, pod) in &self.running {
            ensure!(
                now.iter().any(|c| c.id == *id && c.running),
                "container {id} of {pod} ran at a kill and no longer does"
            );
        }
        Ok(())
    }
}

async fn nothing_restarted(cluster: &Cluster, node: &Node) -> Result<()> {
    let mut seen: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for container in node.runtime.containers().await? {
        ensure!(
            container.attempt == 0,
            "{} of {} is at attempt {}",
            container.name,
            container.pod,
            container.attempt
        );
        seen.entry((container.pod, container.name)).or_default().push(container.id);
    }
    for ((pod, container), ids) in &seen {
        ensure!(ids.len() == 1, "{container} of {pod} was created {} times", ids.len());
    }
    for pod in cluster.pods().list().await?.iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
        let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
        for status in statuses {
            ensure!(
                status.restart_count == 0,
                "the API says that {} restarted in {:?}",
                status.name,
                pod.metadata.name
            );
            let id = status.container_id.unwrap_or_default();
            let name = pod.metadata.name.clone().unwrap_or_default();
            let known = seen.get(&(name.clone(), status.name.clone())).and_then(|ids| ids.first());
            let known = known.with_context(|| format!("{} of {name} is not in the runtime", status.name))?;
            ensure!(id.ends_with(known.as_str()), "the API says {id}, the runtime {known}");
        }
    }
    Ok(())
}

async fn scale(cluster: &Cluster, replicas: i32) -> Result<()> {
    cluster.kubectl.run(&["scale", "deployment", "many", &format!("--replicas={replicas}")]).await?;
    Ok(())
}

async fn wait_available(cluster: &Cluster, replicas: i32) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), "default");
    let what = format!("{replicas} are available");
    let available =
        |d: &Deployment| d.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0) == replicas;
    if let Err(e) = objects::wait_for(&deployments, "many", &what, LIMIT, available).await {
        let pods = cluster.pods().list().await?;
        let late: Vec<String> = pods.iter().filter(|p| !is_ready(p)).map(in_short).collect();
        return Err(e.context(format!("not ready: {}", late.join("; "))));
    }
    Ok(())
}

fn in_short(pod: &Pod) -> String {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let states = pod.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
    let states: Vec<String> =
        states.iter().map(|c| serde_json::to_string(&c.state).unwrap_or_default()).collect();
    format!("{name} {} {}", phase(pod), states.join(" "))
}

async fn all_gone(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    until_true("all pods are gone from the API", LIMIT, async || {
        let left = pods.list().await?;
        ensure!(
            left.is_empty(),
            "{} are left: {}",
            left.len(),
            left.iter().map(in_short).collect::<Vec<_>>().join("; ")
        );
        Ok(true)
    })
    .await?;
    leftovers::wait_clean(node, Duration::from_secs(30)).await
}

/// A small generator of numbers with a given seed, so that a failed run can be run again.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

fn seed_of_the_day() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|d| d.as_secs()).unwrap_or(1)
}
