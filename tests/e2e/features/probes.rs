//! Probes of every kind and both hooks.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::objects::wait_gone;
use keelson_tests::pods::{Pods, SLEEP, condition, is_ready, pod, restarts, shell, sleeper};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::{Value, json};

use super::{LIMIT, exec, exec_to_end};

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
    suite.case("a draining pod turns NotReady before it is gone", LIMIT * 2, draining(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("probes follow redirects on their host only", LIMIT * 2, redirects(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("a probe's command knows the container's env", LIMIT * 2, env_in_command(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("a hook's request is done when it is answered", LIMIT * 2, answered_hook(cluster, node)).await;
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
    let mut container = sleeper("main");
    container["livenessProbe"] = every_second(json!({"exec": {"command": ["test", "!", "-e", "/tmp/dead"]}}));
    let pods = cluster.pods();
    pods.create(pod("liveness", node.agent.node(), json!([container, sleeper("side")]))).await?;
    pods.wait_ready("liveness", LIMIT).await?;
    exec_to_end(node, "liveness", "main", "touch /tmp/dead").await?;
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
    container["lifecycle"] = json!({"postStart": {"exec": {"command": ["sh", "-c", "echo secret; exit 7"]}}});
    let mut hooked = pod("failed-hook", node.agent.node(), json!([container]));
    hooked["spec"]["restartPolicy"] = json!("Never");
    let pods = cluster.pods();
    pods.create(hooked).await?;
    pods.wait("failed-hook", "ended", LIMIT, |p| {
        matches!(keelson_tests::pods::phase(p).as_str(), "Failed" | "Succeeded")
    })
    .await?;
    event(&pods, "failed-hook", "FailedPostStartHook", "PostStartHook failed").await?;
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

/// Liveness fails as well, and nobody may hear of it: nothing is restarted in a pod that is being ended.
async fn draining(cluster: &Cluster, node: &Node) -> Result<()> {
    let ended = "trap 'rm /tmp/ok; while [ ! -e /tmp/end ]; do sleep 1; done; exit 0' TERM";
    let line = format!("touch /tmp/ok; {ended}; while :; do sleep 3600 & wait $!; done");
    let mut container = shell("main", &line);
    for probe in ["readinessProbe", "livenessProbe"] {
        container[probe] =
            every_second(json!({"exec": {"command": ["cat", "/tmp/ok"]}, "timeoutSeconds": 20}));
    }
    container["startupProbe"] =
        json!({"exec": {"command": ["cat", "/tmp/ok"]}, "periodSeconds": 1, "failureThreshold": 60});
    let mut drained = pod("draining", node.agent.node(), json!([container]));
    drained["spec"]["terminationGracePeriodSeconds"] = json!(LIMIT.as_secs());
    let pods = cluster.pods();
    pods.create(drained).await?;
    pods.wait_ready("draining", LIMIT).await?;
    pods.api.delete("draining", &Default::default()).await?;
    let unready = pods.wait("draining", "no longer Ready", LIMIT, |p| !is_ready(p)).await?;
    let states = unready.status.and_then(|s| s.container_statuses).unwrap_or_default();
    let running = states.iter().all(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()));
    ensure!(running, "it became unready by its end: {states:?}");
    let events = pods.events_about("draining").await?;
    let liveness = events.iter().filter_map(|e| e.message.as_ref()).find(|m| m.starts_with("Liveness"));
    ensure!(liveness.is_none(), "liveness was probed: {liveness:?}");
    exec_to_end(node, "draining", "main", "touch /tmp/end").await?;
    wait_gone(&pods.api, "draining", None, LIMIT).await
}

async fn redirects(cluster: &Cluster, node: &Node) -> Result<()> {
    let to = |location: &str| {
        let script = format!(
            "#!/bin/sh\\nprintf \"Status: 302 Found\\\\r\\\\nLocation: {location}\\\\r\\\\n\\\\r\\\\n\"\\n"
        );
        let home = "mkdir -p /www/cgi-bin; echo fine >/www/alive";
        let made = format!("printf '{script}' >/www/cgi-bin/to; chmod +x /www/cgi-bin/to");
        let mut container = shell("main", &format!("{home}; {made}; exec httpd -f -p 8080 -h /www"));
        let probe = json!({"httpGet": {"path": "/cgi-bin/to", "port": 8080}, "timeoutSeconds": 20});
        // The first answers may find the server starting.
        container["startupProbe"] =
            json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 60});
        container["livenessProbe"] = every_second(probe.clone());
        container["readinessProbe"] = every_second(probe);
        container
    };
    let pods = cluster.pods();
    pods.create(pod("on-host", node.agent.node(), json!([to("/alive")]))).await?;
    pods.create(pod("elsewhere", node.agent.node(), json!([to("http://0.0.0.0/")]))).await?;
    pods.wait_ready("on-host", LIMIT).await?;
    pods.wait_ready("elsewhere", LIMIT).await?;
    let words = "Liveness probe warning: Probe terminated redirects, Response body: ";
    event(&pods, "elsewhere", "ProbeWarning", words).await?;
    exec(node, "on-host", "main", "rm /www/alive").await?;
    pods.wait("on-host", "restarted once", LIMIT, |p| is_ready(p) && restarts(p, "main") == 1).await?;
    event(&pods, "on-host", "Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 404")
        .await?;
    ensure!(restarts(&pods.get("elsewhere").await?, "main") == 0, "a redirect elsewhere was a failure");
    pods.delete("on-host", LIMIT).await?;
    pods.delete("elsewhere", LIMIT).await
}

async fn env_in_command(cluster: &Cluster, node: &Node) -> Result<()> {
    let mut container = shell("main", &format!("touch /tmp/named; {SLEEP}"));
    container["env"] = json!([{"name": "NAME", "value": "named"}]);
    let command = json!(["sh", "-c", "test -e /tmp/$(NAME) && test '$$(NAME)' = '$'\"(NAME)\""]);
    container["readinessProbe"] = every_second(json!({"exec": {"command": command}}));
    let pods = cluster.pods();
    pods.create(pod("env-in-command", node.agent.node(), json!([container]))).await?;
    pods.wait_ready("env-in-command", LIMIT).await?;
    pods.delete("env-in-command", LIMIT).await
}

/// The server answers with an error, which is an answer, and notes who asked.
async fn answered_hook(cluster: &Cluster, node: &Node) -> Result<()> {
    let script = "#!/bin/sh\\necho \"$HTTP_USER_AGENT\" >>/tmp/agents\\nprintf \"Status: 500 Sorry\\\\r\\\\n\\\\r\\\\n\"\\n";
    let made = format!("printf '{script}' >/www/cgi-bin/sorry; chmod +x /www/cgi-bin/sorry");
    let mut server = shell("main", &format!("mkdir -p /www/cgi-bin; {made}; exec httpd -f -p 8080 -h /www"));
    server["readinessProbe"] = every_second(json!({"tcpSocket": {"port": 8080}}));
    let pods = cluster.pods();
    pods.create(pod("hook-server", node.agent.node(), json!([server]))).await?;
    let address = keelson_tests::pods::ip(&pods.wait_ready("hook-server", LIMIT).await?);
    let get = json!({"httpGet": {"host": address, "port": 8080, "path": "/cgi-bin/sorry"}});
    let mut container = sleeper("main");
    container["lifecycle"] = json!({"postStart": get, "preStop": get});
    pods.create(pod("answered-hook", node.agent.node(), json!([container]))).await?;
    let ready = pods.wait_ready("answered-hook", LIMIT).await?;
    ensure!(restarts(&ready, "main") == 0, "the answer ended the container");
    pods.delete("answered-hook", LIMIT).await?;
    let agents = exec(node, "hook-server", "main", "cat /tmp/agents").await?;
    let expected = "kube-lifecycle/1.36\n".repeat(2);
    ensure!(agents == expected, "asked by {agents:?}");
    pods.delete("hook-server", LIMIT).await
}

/// Waits for an event of the pod that says just this.
async fn event(pods: &Pods, name: &str, reason: &str, message: &str) -> Result<()> {
    until_true(&format!("{name} has an event {reason}: {message}"), LIMIT, async || {
        let events = pods.events_about(name).await?;
        let says = |e: &Event| e.reason.as_deref() == Some(reason) && e.message.as_deref() == Some(message);
        Ok(events.iter().any(says))
    })
    .await
}
