//! A pod's whole life on both generations of the runtime: the distribution's containerd, which has to be asked again and
//! again what runs, and 2.x, which sends events.

mod capabilities;
mod image_volumes;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::isolation::NODE_IP;
use keelson_tests::pods::{
    Pods, SLEEP, condition, ip, is_ready, phase, pod, prepared, restarts, shell, sleeper, uid,
};
use keelson_tests::suite::Suite;
use keelson_tests::wait::{until, until_true};
use keelson_tests::{leftovers, objects};
use kube::api::DeleteParams;
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(60);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let cluster = Cluster::start(suite.dir(), Extent::Whole).await?;
    for (number, kind, name) in [(1, Kind::V2, "events"), (2, Kind::Distribution, "relist")] {
        let mut node = cluster.join(name, number, kind, json!({})).await?;
        let titled = |what: &str| format!("{name}: {what}");
        let case = titled("two init and two main containers: Ready, deleted, gone");
        suite.case(&case, LIMIT * 2, init_and_main(&cluster, &node)).await;
        cluster.reset(suite, &mut node).await;
        let case = titled("a host port leads to the pod while it lives");
        suite.case(&case, LIMIT, host_port(&cluster, &node)).await;
        cluster.reset(suite, &mut node).await;
        let case = titled("the network plugins read what the runtime writes");
        suite.case(&case, LIMIT * 2, capabilities::capabilities(&cluster, &node, kind)).await;
        cluster.reset(suite, &mut node).await;
        let case = titled("a container that ends comes back under Always, not under Never");
        suite.case(&case, LIMIT, restart_policies(&cluster, &node)).await;
        cluster.reset(suite, &mut node).await;
        let case = titled("a sandbox that dies is made again");
        suite.case(&case, LIMIT, sandbox_dies(&cluster, &node)).await;
        cluster.reset(suite, &mut node).await;
        let case = titled("TERM comes first and the grace period is kept");
        suite.case(&case, LIMIT, grace(&cluster, &node)).await;
        cluster.reset(suite, &mut node).await;
        let case = titled("a killed agent restarts no container and says at once what is");
        suite.case(&case, LIMIT, killed_agent(&cluster, &mut node)).await;
        cluster.reset(suite, &mut node).await;
        let case = titled("a pod deleted or replaced while the agent is away is cleaned up");
        suite.case(&case, LIMIT * 2, changed_while_away(&cluster, &mut node)).await;
        cluster.reset(suite, &mut node).await;
        let case = titled("an agent that is asked to end leaves its pods running");
        suite.case(&case, LIMIT, clean_shutdown(&cluster, &mut node)).await;
        cluster.reset(suite, &mut node).await;
        if kind == Kind::Distribution {
            let case = titled("an image as a volume is refused with the version that can");
            suite.case(&case, LIMIT, image_volumes::refused(&cluster, &node)).await;
            cluster.reset(suite, &mut node).await;
        }
        node.agent.stop().await?;
    }
    Ok(())
}

async fn init_and_main(cluster: &Cluster, node: &Node) -> Result<()> {
    let (pods, kubectl) = (cluster.pods(), &cluster.kubectl);
    let name = "whole";
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "whole"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node.agent.node()}, "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "shared", "emptyDir": {}}],
            "initContainers": [
                with_shared(shell("first", "test ! -e /shared/order && echo first >>/shared/order")),
                with_shared(shell("second", "grep -q first /shared/order && echo second >>/shared/order")),
            ],
            "containers": [
                with_shared(shell("web", &format!("cp /shared/order /www/ && httpd -p 8080 -h /www; {SLEEP}"))),
                with_shared(shell("side", &format!("echo side is up; {SLEEP}"))),
            ],
        },
    });
    kubectl.apply(&manifest.to_string()).await?;
    let pod = pods.wait_ready(name, LIMIT).await?;
    for kind in ["PodReadyToStartContainers", "Initialized", "ContainersReady", "PodScheduled"] {
        ensure!(condition(&pod, kind).as_deref() == Some("True"), "{kind} is {:?}", condition(&pod, kind));
    }
    ensure!(phase(&pod) == "Running", "phase is {}", phase(&pod));
    let status = pod.status.clone().context("no status")?;
    ensure!(status.host_ip.as_deref() == Some("192.0.2.10"), "hostIP is {:?}", status.host_ip);
    ensure!(status.qos_class.as_deref() == Some("BestEffort"), "qosClass is {:?}", status.qos_class);
    let inits = status.init_container_statuses.unwrap_or_default();
    let codes: Vec<_> = inits
        .iter()
        .map(|c| c.state.as_ref().and_then(|s| s.terminated.as_ref()).map(|t| t.exit_code))
        .collect();
    ensure!(codes == [Some(0), Some(0)], "init containers ended with {codes:?}");
    let page = fetch(&ip(&pod).context("no pod IP")?, 8080, "/order").await?;
    ensure!(page.ends_with("first\nsecond\n"), "the page is {page:?}");
    logs_are_kept(node, &pod).await?;
    events_tell_the_story(&pods, name).await?;
    let table = node.agent.pods().await?;
    ensure!(
        table.iter().any(|row| row["name"] == name && row["ready"] == true),
        "`keelson pods` shows {table:?}"
    );

    kubectl.run(&["delete", "pod", name, "--wait=true", "--timeout=30s"]).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

/// The runtime hands the mapping to the CNI plugins, each generation in its own spelling.
async fn host_port(cluster: &Cluster, node: &Node) -> Result<()> {
    const PORT: u16 = 18080;
    let pods = cluster.pods();
    let mut web = shell("web", &format!("echo here >/www/page && httpd -p 8080 -h /www; {SLEEP}"));
    web["ports"] = json!([{"containerPort": 8080, "hostPort": PORT}]);
    web["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    pods.create(pod("web", node.agent.node(), json!([web]))).await?;
    pods.wait_ready("web", LIMIT).await?;
    let page = fetch(NODE_IP, PORT, "/page").await.context("by the host's address")?;
    ensure!(page.ends_with("here\n"), "the page is {page:?}");
    pods.delete("web", LIMIT).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await?;
    let late = tokio::net::TcpStream::connect((NODE_IP, PORT)).await;
    ensure!(late.is_err(), "the port still leads somewhere");
    Ok(())
}

fn with_shared(mut container: serde_json::Value) -> serde_json::Value {
    container["volumeMounts"] = json!([{"name": "shared", "mountPath": "/shared"}]);
    container
}

async fn logs_are_kept(node: &Node, pod: &Pod) -> Result<()> {
    let dir = node.agent.pod_logs().join(format!("default_whole_{}", uid(pod))).join("side");
    until_true("what it wrote is in its log", LIMIT, async || {
        let log = std::fs::read_to_string(dir.join("0.log"))
            .with_context(|| format!("no log in {}", dir.display()))?;
        ensure!(log.contains("stdout F side is up"), "the log is {log:?}");
        Ok(true)
    })
    .await
}

async fn events_tell_the_story(pods: &Pods, name: &str) -> Result<()> {
    until_true("the events are there", Duration::from_secs(10), async || {
        let reasons = pods.event_reasons(name).await?;
        let has = |wanted: &str| reasons.iter().any(|r| r == wanted);
        ensure!(has("Scheduled") && has("Pulled") && has("Created") && has("Started"), "only {reasons:?}");
        Ok(true)
    })
    .await
}

/// One request by hand: the pods' network is this process's too.
async fn fetch(ip: &str, port: u16, path: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    until("the page can be fetched", Duration::from_secs(10), async || {
        let mut stream = tokio::net::TcpStream::connect((ip, port)).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(Some(answer))
    })
    .await
}

async fn restart_policies(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let once = "test -e /flag/x && exec sleep 3600; touch /flag/x; exit 3";
    for (name, policy) in [("always", "Always"), ("on-failure", "OnFailure"), ("never", "Never")] {
        let mut container = shell("main", once);
        container["volumeMounts"] = json!([{"name": "flag", "mountPath": "/flag"}]);
        let mut pod = pod(name, node.agent.node(), json!([container]));
        pod["spec"]["restartPolicy"] = json!(policy);
        pod["spec"]["volumes"] = json!([{"name": "flag", "emptyDir": {}}]);
        pods.create(pod).await?;
    }
    for name in ["always", "on-failure"] {
        let pod = pods
            .wait(name, "Ready after one restart", LIMIT, |p| is_ready(p) && restarts(p, "main") == 1)
            .await?;
        let statuses = pod.status.and_then(|s| s.container_statuses).unwrap_or_default();
        let last = statuses[0].last_state.as_ref().and_then(|s| s.terminated.as_ref());
        ensure!(
            last.is_some_and(|t| t.exit_code == 3 && t.reason.as_deref() == Some("Error")),
            "lastState is {last:?}"
        );
    }
    let failed = pods.wait_phase("never", "Failed", LIMIT).await?;
    ensure!(restarts(&failed, "main") == 0);
    for name in ["always", "on-failure", "never"] {
        pods.api.delete(name, &DeleteParams::default()).await?;
    }
    for name in ["always", "on-failure", "never"] {
        objects::wait_gone(&pods.api, name, None, LIMIT).await?;
    }
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn sandbox_dies(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let name = "phoenix";
    pods.create(pod(name, node.agent.node(), json!([sleeper("main")]))).await?;
    let before = pods.wait_ready(name, LIMIT).await?;
    let sandbox = node.runtime.sandboxes_of(name).await?.first().context("no sandbox")?.id.clone();
    node.runtime.stop_sandbox(&sandbox).await?;
    // The container may have been tried once more in the dying sandbox before that was seen to die.
    pods.wait(name, "Ready in a new sandbox", LIMIT, |p| is_ready(p) && restarts(p, "main") >= 1).await?;
    let sandboxes = node.runtime.sandboxes_of(name).await?;
    ensure!(sandboxes.iter().any(|s| s.state == 0 && s.id != sandbox), "sandboxes: {sandboxes:?}");
    let after = pods.get(name).await?;
    ensure!(uid(&before) == uid(&after), "the pod object was replaced");
    pods.delete(name, LIMIT).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn grace(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    // The goodbye takes a second; a process that were killed at once would not get to write it.
    let goodbye = "trap 'sleep 1; echo goodbye >/out/last; exit 0' TERM";
    let out = node.agent.root_dir().join("grace-out");
    std::fs::create_dir_all(&out)?;
    let mut container = prepared("main", goodbye, "while :; do sleep 3600 & wait $!; done");
    container["volumeMounts"] = json!([{"name": "out", "mountPath": "/out"}]);
    let mut polite = pod("polite", node.agent.node(), json!([container]));
    polite["spec"]["terminationGracePeriodSeconds"] = json!(20);
    polite["spec"]["volumes"] = json!([{"name": "out", "hostPath": {"path": out, "type": "Directory"}}]);
    let deaf = prepared("main", "trap '' TERM", "while :; do sleep 1; done");
    let stubborn = pod("stubborn", node.agent.node(), json!([deaf]));
    pods.create(polite).await?;
    pods.create(stubborn).await?;
    pods.wait_ready("polite", LIMIT).await?;
    pods.wait_ready("stubborn", LIMIT).await?;
    pods.delete("polite", Duration::from_secs(15)).await?;
    ensure!(std::fs::read_to_string(out.join("last"))?.trim() == "goodbye");
    pods.delete("stubborn", Duration::from_secs(15))
        .await
        .context("SIGKILL did not follow after the grace of 2 s")?;
    std::fs::remove_dir_all(&out)?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn killed_agent(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    let name = "survivor";
    pods.create(pod(name, node.agent.node(), json!([sleeper("a"), sleeper("b")]))).await?;
    pods.wait_ready(name, LIMIT).await?;
    let before = node.runtime.containers_of(name).await?;
    node.agent.kill()?;
    // One container dies while no agent observes it; the other one must not be touched.
    node.runtime.stop_container(&before[1].id).await?;
    node.agent.restart().await?;
    pods.wait(name, "b was restarted", LIMIT, |p| {
        is_ready(p) && restarts(p, "b") == 1 && restarts(p, "a") == 0
    })
    .await?;
    let after = node.runtime.containers_of(name).await?;
    ensure!(after.iter().any(|c| c.id == before[0].id && c.running), "container a was replaced: {after:?}");
    pods.delete(name, LIMIT).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn changed_while_away(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    for name in ["deleted", "replaced", "forced"] {
        pods.create(pod(name, node.agent.node(), json!([sleeper("main")]))).await?;
    }
    for name in ["deleted", "replaced", "forced"] {
        pods.wait_ready(name, LIMIT).await?;
    }
    let old = uid(&pods.get("replaced").await?);
    node.agent.kill()?;
    let now = DeleteParams::default().grace_period(0);
    pods.api.delete("deleted", &DeleteParams::default()).await?;
    pods.api.delete("forced", &now).await?;
    pods.api.delete("replaced", &now).await?;
    pods.create(pod("replaced", node.agent.node(), json!([sleeper("main")]))).await?;
    node.agent.restart().await?;
    let new = pods.wait_ready("replaced", LIMIT).await?;
    ensure!(uid(&new) != old);
    objects::wait_gone(&pods.api, "deleted", None, LIMIT).await?;
    until_true("only the new pod runs", LIMIT, async || {
        let sandboxes = node.runtime.sandboxes().await?;
        let uids: Vec<_> =
            sandboxes.iter().filter_map(|s| s.metadata.as_ref().map(|m| m.uid.clone())).collect();
        ensure!(uids == [uid(&new)], "sandboxes of {uids:?}");
        Ok(true)
    })
    .await?;
    pods.delete("replaced", LIMIT).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn clean_shutdown(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    let name = "stays";
    pods.create(pod(name, node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready(name, LIMIT).await?;
    let before = node.runtime.containers_of(name).await?;
    let status = node.agent.stop().await?;
    ensure!(status.success(), "the agent ended with {status}");
    ensure!(node.runtime.containers_of(name).await? == before, "stopping the agent touched the pod");
    node.agent.restart().await?;
    // Before its pods have a worker each, an agent could not touch any.
    until_true("the new agent supervises the pod", LIMIT, async || {
        let table = node.agent.pods().await?;
        ensure!(table.iter().any(|row| row["name"] == name && row["ready"] == true), "it shows {table:?}");
        Ok(true)
    })
    .await?;
    ensure!(node.runtime.containers_of(name).await? == before, "starting the agent touched the pod");
    pods.delete(name, LIMIT).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}
