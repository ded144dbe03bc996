//! Probes of every kind and both hooks.

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::pods::{SLEEP, condition, is_ready, pod, restarts, shell, sleeper};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::{Value, json};

use super::{LIMIT, exec};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    suite.case("readiness by http, exec and tcp comes and goes", LIMIT * 2, readiness(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("a container whose liveness fails is restarted", LIMIT * 2, liveness(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("startup holds the others back", LIMIT * 2, startup(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("postStart is done before Ready, preStop before TERM", LIMIT * 2, hooks(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("a failed postStart ends its container", LIMIT * 2, failed_hook(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("a hook that never ends is ended with the pod", LIMIT * 2, endless_hook(cluster, node)).await;
    cluster.reset(suite, node).await;
}

fn every_second(mut probe: Value) -> Value {
    probe["periodSeconds"] = json!(1);
    probe["failureThreshold"] = json!(1);
    probe
}

async fn readiness(cluster: &Cluster, node: &Node) -> Result<()> {
    let mut http = shell("http", "mkdir -p /www; exec httpd -f -p 8080 -h /www");
    http["readinessProbe"] = every_second(json!({"httpGet": {"path": "/ok", "port": "web"}}));
    http["ports"] = json!([{"name": "web", "containerPort": 8080}]);
    let mut by_exec = sleeper("exec");
    by_exec["readinessProbe"] = every_second(json!({"exec": {"command": ["test", "-e", "/tmp/ok"]}}));
    let mut tcp = sleeper("tcp");
    tcp["readinessProbe"] = every_second(json!({"tcpSocket": {"port": 9090}}));
    let pods = cluster.pods();
    pods.create(pod("readiness", node.agent.node(), json!([http, by_exec, tcp]))).await?;
    let started = pods.wait("readiness", "all run", LIMIT, |p| {
        let states = p.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
        states.len() == 3 && states.iter().all(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()))
    });
    let started = started.await?;
    ensure!(condition(&started, "Ready").as_deref() == Some("False"), "Ready before any probe succeeded");
    exec(node, "readiness", "http", "echo fine >/www/ok").await?;
    exec(node, "readiness", "exec", "touch /tmp/ok").await?;
    exec(node, "readiness", "tcp", "httpd -p 9090 -h /").await?;
    pods.wait_ready("readiness", LIMIT).await?;
    exec(node, "readiness", "exec", "rm /tmp/ok").await?;
    let unready = pods.wait("readiness", "no longer Ready", LIMIT, |p| !is_ready(p)).await?;
    let states = unready.status.and_then(|s| s.container_statuses).unwrap_or_default();
    let ready: Vec<bool> = states.iter().map(|c| c.ready).collect();
    ensure!(states.iter().all(|c| c.restart_count == 0), "readiness restarted a container");
    ensure!(ready.iter().filter(|r| !**r).count() == 1, "ready are {ready:?}");
    until_true("Unhealthy is reported", LIMIT, async || {
        Ok(pods.event_reasons("readiness").await?.iter().any(|r| r == "Unhealthy"))
    })
    .await?;
    pods.delete("readiness", LIMIT).await
}

async fn liveness(cluster: &Cluster, node: &Node) -> Result<()> {
    let mut container = shell("main", &format!("touch /tmp/alive; {SLEEP}"));
    container["livenessProbe"] = every_second(json!({"exec": {"command": ["test", "-e", "/tmp/alive"]}}));
    let pods = cluster.pods();
    pods.create(pod("liveness", node.agent.node(), json!([container, sleeper("side")]))).await?;
    pods.wait_ready("liveness", LIMIT).await?;
    exec(node, "liveness", "main", "rm /tmp/alive").await?;
    let back =
        pods.wait("liveness", "restarted once", LIMIT, |p| is_ready(p) && restarts(p, "main") == 1).await?;
    ensure!(restarts(&back, "side") == 0);
    pods.delete("liveness", LIMIT).await
}

async fn startup(cluster: &Cluster, node: &Node) -> Result<()> {
    let mut container = sleeper("main");
    let startup = json!({"exec": {"command": ["test", "-e", "/tmp/started"]}, "periodSeconds": 1, "failureThreshold": 60});
    container["startupProbe"] = startup;
    container["livenessProbe"] = every_second(json!({"exec": {"command": ["test", "-e", "/tmp/started"]}}));
    let pods = cluster.pods();
    pods.create(pod("startup", node.agent.node(), json!([container]))).await?;
    let slow = pods.wait("startup", "runs, not started", LIMIT, |p| {
        let states = p.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
        states
            .iter()
            .any(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()) && c.started == Some(false))
    });
    slow.await?;
    exec(node, "startup", "main", "touch /tmp/started").await?;
    let ready = pods.wait_ready("startup", LIMIT).await?;
    ensure!(restarts(&ready, "main") == 0, "liveness struck before startup was done");
    pods.delete("startup", LIMIT).await
}

async fn hooks(cluster: &Cluster, node: &Node) -> Result<()> {
    let out = node.agent.root_dir().join("hooks-out");
    let mut container =
        shell("main", "trap 'echo term >>/out/order; exit 0' TERM; while :; do sleep 3600 & wait $!; done");
    container["volumeMounts"] = json!([{"name": "out", "mountPath": "/out"}]);
    container["lifecycle"] = json!({
        "postStart": {"exec": {"command": ["sh", "-c", "sleep 1; echo post >>/out/order"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "sleep 1; echo pre >>/out/order"]}},
    });
    let mut hooked = pod("hooks", node.agent.node(), json!([container]));
    hooked["spec"]["terminationGracePeriodSeconds"] = json!(20);
    hooked["spec"]["volumes"] =
        json!([{"name": "out", "hostPath": {"path": out, "type": "DirectoryOrCreate"}}]);
    let pods = cluster.pods();
    pods.create(hooked).await?;
    pods.wait_ready("hooks", LIMIT).await?;
    let order = std::fs::read_to_string(out.join("order")).context("Ready before postStart was done")?;
    ensure!(order == "post\n", "the order is {order:?}");
    pods.delete("hooks", LIMIT).await?;
    let order = std::fs::read_to_string(out.join("order"))?;
    ensure!(order == "post\npre\nterm\n", "the order is {order:?}");
    Ok(std::fs::remove_dir_all(&out)?)
}

async fn failed_hook(cluster: &Cluster, node: &Node) -> Result<()> {
    let mut container = sleeper("main");
    container["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", "exit 7"]}}});
    let mut hooked = pod("failed-hook", node.agent.node(), json!([container]));
    hooked["spec"]["restartPolicy"] = json!("Never");
    let pods = cluster.pods();
    pods.create(hooked).await?;
    pods.wait("failed-hook", "ended", LIMIT, |p| {
        matches!(keelson_tests::pods::phase(p).as_str(), "Failed" | "Succeeded")
    })
    .await?;
    until_true("FailedPostStartHook is reported", LIMIT, async || {
        Ok(pods.event_reasons("failed-hook").await?.iter().any(|r| r == "FailedPostStartHook"))
    })
    .await?;
    pods.delete("failed-hook", LIMIT).await
}

async fn endless_hook(cluster: &Cluster, node: &Node) -> Result<()> {
    let mut container = sleeper("main");
    container["lifecycle"] = json!({"postStart": {"exec": {"command": ["sleep", "3600"]}}});
    let pods = cluster.pods();
    pods.create(pod("endless", node.agent.node(), json!([container]))).await?;
    pods.create(pod("bystander", node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready("bystander", LIMIT).await?;
    until_true("the hook runs", LIMIT, async || {
        Ok(exec(node, "endless", "main", "ps").await?.contains("sleep 3600"))
    })
    .await?;
    ensure!(!is_ready(&pods.get("endless").await?), "Ready while postStart still runs");
    pods.delete("endless", LIMIT).await?;
    pods.delete("bystander", LIMIT).await
}
