//! `keelson why`: what a pod waits for and where its time went, also of one that is gone, without an apiserver, and while the
//! apiserver is away.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::agent::Agent;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::images::BUSYBOX;
use keelson_tests::pods::{SLEEP, pod, shell, sleeper, uid};
use keelson_tests::suite::Suite;
use keelson_tests::wait::{until, until_true};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let dir = suite.dir().to_owned();
    let mut cluster = Cluster::start(&dir, Extent::WithoutScheduler).await?;
    let mut node = cluster.join("node", 1, Kind::V2, json!({"fileCheckFrequency": "1s"})).await?;
    let case = "a start is shown step by step, drawn, and counted by the metrics";
    suite.case(case, LIMIT * 2, start(&cluster, &node, &dir)).await;
    cluster.reset(suite, &mut node).await;
    let case = "an image that cannot be pulled: what is waited for, and the registry's words";
    suite.case(case, LIMIT * 2, no_image(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "a secret that does not exist, and a probe that fails";
    suite.case(case, LIMIT * 2, waiting(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "a crash is a failure with its exit code, and a restart is shown apart";
    suite.case(case, LIMIT * 2, crash(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "a pod that is gone is remembered, beside the next one of its name";
    suite.case(case, LIMIT * 2, gone(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "after a restart of the agent, what the runtime remembers";
    suite.case(case, LIMIT * 2, restarted(&cluster, &mut node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "with the apiserver away it is said what waits for it";
    suite.case(case, LIMIT * 3, apiserver_away(&mut cluster, &node, &dir)).await;
    drop(node);
    let alone = Node::standalone(&dir, "alone", 2, Kind::Distribution).await?;
    suite.case("standalone", LIMIT * 2, standalone(&alone)).await;
    Ok(())
}

fn stage<'a>(report: &'a Value, name: &str) -> Result<&'a Value> {
    let stages = report["stages"].as_array().context("no stages")?;
    stages.iter().find(|s| s["stage"] == name).with_context(|| format!("no stage {name} in {report:#}"))
}

/// `step` or `step container` of each step that was done, in their order.
fn done(stage: &Value) -> Vec<String> {
    let steps = stage["steps"].as_array().into_iter().flatten();
    let name = |s: &Value| {
        let container = s["container"].as_str().map_or(String::new(), |c| format!(" {c}"));
        format!("{}{container}", s["step"].as_str().unwrap_or_default())
    };
    steps.filter(|s| s["result"] == "done").map(name).collect()
}

/// Whether all of these are there, in this order.
fn in_order(found: &[String], wanted: &[&str]) -> bool {
    let mut found = found.iter();
    wanted.iter().all(|w| found.any(|f| f == w))
}

/// Waits until something is waited for whose words contain this.
async fn waits_for(agent: &Agent, pod: &str, words: &str) -> Result<Value> {
    until(&format!("{pod}: {words}"), LIMIT, async || {
        let report = agent.why(pod).await?;
        let all = report["now"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|w| w["what"].as_str().is_some_and(|what| what.contains(words)));
        Ok(Some(found.with_context(|| format!("waits for {:#}", report["now"]))?))
    })
    .await
}

fn failure<'a>(report: &'a Value, step: &str) -> Result<&'a Value> {
    let all = report["failures"].as_array().context("no failures")?;
    all.iter().find(|f| f["step"] == step).with_context(|| format!("no failure of {step} in {all:#?}"))
}

async fn start(cluster: &Cluster, node: &Node, dir: &Path) -> Result<()> {
    let pods = cluster.pods();
    let mut app = sleeper("app");
    app["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let mut wanted = pod("web", node.agent.node(), json!([app]));
    wanted["spec"]["initContainers"] = json!([shell("first", "sleep 1")]);
    wanted["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    let made = pods.create(wanted).await?;
    pods.wait_ready("web", LIMIT).await?;
    let report = until("the apiserver's word is in the record", LIMIT, async || {
        let report = node.agent.why("web").await?;
        Ok(done(stage(&report, "start")?).iter().any(|s| s == "reported").then_some(report))
    })
    .await?;
    let start = stage(&report, "start")?;
    let order = [
        "seen",
        "admitted",
        "volumes",
        "sandbox",
        "pull first",
        "created first",
        "started first",
        "run first",
    ];
    ensure!(in_order(&done(start), &order), "{start:#}");
    let order = ["run first", "pull app", "created app", "started app", "ready app"];
    ensure!(in_order(&done(start), &order), "{start:#}");
    let steps = start["steps"].as_array().context("no steps")?;
    ensure!(steps.iter().filter(|s| s["slowest"] == true).count() == 1, "{start:#}");
    let of = |step: &str| steps.iter().find(|s| s["step"] == step).cloned().unwrap_or_default();
    ensure!(of("run")["seconds"].as_f64().is_some_and(|s| s > 0.0), "the init container: {}", of("run"));
    ensure!(of("sandbox")["place"] == "runtime and network plugin", "{}", of("sandbox"));
    ensure!(of("ready")["place"] == "probe", "{}", of("ready"));
    ensure!(report["now"] == json!([]) && report["ready"] == true, "{report:#}");
    ensure!(report["uid"] == uid(&made) && report["source"] == "api", "{report:#}");
    let places = start["places"].as_array().context("no places")?;
    ensure!(places.iter().any(|p| p["place"] == "container"), "{places:?}");

    let picture = dir.join("web.svg");
    let text = node.agent.why_with(&["default/web", "--svg", &picture.display().to_string()]).await?;
    ensure!(text.contains("\u{25c0} slowest") && text.contains("it waits for nothing"), "{text}");
    let drawn = std::fs::read_to_string(&picture).context("no picture")?;
    ensure!(drawn.starts_with("<svg ") && drawn.trim_end().ends_with("</svg>"), "{drawn}");

    let metrics = metrics(cluster, node).await?;
    for name in [
        "kubelet_pod_start_duration_seconds_count",
        "kubelet_pod_start_total_duration_seconds_count",
        "kubelet_pod_start_sli_duration_seconds_count",
        "kubelet_pod_worker_start_duration_seconds_count",
        "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"\"}",
    ] {
        ensure!(metrics.lines().any(|l| l == format!("{name} 1")), "{name} is not 1 in {metrics}");
    }
    let value = |name: &str| -> Result<f64> {
        let line = metrics.lines().find_map(|l| l.strip_prefix(&format!("{name} ")));
        Ok(line.with_context(|| format!("no {name}"))?.parse()?)
    };
    let (total, sli) = (
        value("kubelet_pod_start_total_duration_seconds_sum")?,
        value("kubelet_pod_start_sli_duration_seconds_sum")?,
    );
    let init = of("run")["seconds"].as_f64().unwrap_or_default();
    ensure!((total - sli - init).abs() < 1e-3, "{total} without {init} is {sli}");
    ensure!(
        value("kubelet_run_podsandbox_duration_seconds_sum{runtime_handler=\"\"}")?
            == of("sandbox")["seconds"].as_f64().unwrap_or_default()
    );
    Ok(())
}

async fn metrics(cluster: &Cluster, node: &Node) -> Result<String> {
    let path = format!("/api/v1/nodes/{}/proxy/metrics", node.agent.node());
    cluster.kubectl.run(&["get", "--raw", &path]).await
}

async fn no_image(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut app = sleeper("app");
    app["image"] = json!("127.0.0.1:1/nowhere:1");
    pods.create(pod("broken", node.agent.node(), json!([app]))).await?;
    let wait = waits_for(&node.agent, "broken", "backs off from pulling 127.0.0.1:1/nowhere:1").await?;
    ensure!(wait["container"] == "app" && wait["retryAt"].is_string(), "{wait}");
    ensure!(wait["retryInSeconds"].as_f64().is_some_and(|s| s <= 300.0), "{wait}");
    let report = node.agent.why("broken").await?;
    let failed = failure(&report, "pull")?;
    ensure!(failed["place"] == "registry" && failed["container"] == "app", "{failed}");
    ensure!(failed["cause"].as_str().is_some_and(|c| c.contains("connection refused")), "{failed}");
    let text = node.agent.why_with(&["broken"]).await?;
    ensure!(text.contains("next try in ") && text.contains("LAST FAILURES"), "{text}");
    Ok(())
}

async fn waiting(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut app = sleeper("app");
    app["env"] = json!([{"name": "X", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}}]);
    app["readinessProbe"] =
        json!({"exec": {"command": ["sh", "-c", "echo not yet; exit 1"]}, "periodSeconds": 1});
    pods.create(pod("needy", node.agent.node(), json!([app]))).await?;
    let words = "waits for secret default/db, which does not exist";
    let wait = waits_for(&node.agent, "needy", words).await?;
    ensure!(wait["then"] == "it goes on when the secret is created", "{wait}");
    cluster.kubectl.run(&["create", "secret", "generic", "db", "--from-literal=k=v"]).await?;
    let probe = "its readiness probe has not succeeded: Readiness probe failed: not yet";
    let wait = waits_for(&node.agent, "needy", probe).await?;
    ensure!(wait["container"] == "app", "{wait}");
    cluster.kubectl.run(&["delete", "secret", "db"]).await?;
    Ok(())
}

async fn crash(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut app = shell(
        "app",
        "test -e /flag/x && exec sleep 3600; touch /flag/x; echo why >/dev/termination-log; exit 3",
    );
    app["volumeMounts"] = json!([{"name": "flag", "mountPath": "/flag"}]);
    let mut wanted = pod("crashing", node.agent.node(), json!([app]));
    wanted["spec"]["volumes"] = json!([{"name": "flag", "emptyDir": {}}]);
    pods.create(wanted).await?;
    let report = until("the restart is done", LIMIT, async || {
        let report = node.agent.why("crashing").await?;
        let since = stage(&report, "since").map(done).unwrap_or_default();
        Ok(in_order(&since, &["created app", "started app", "ready app"]).then_some(report))
    })
    .await?;
    let failed = failure(&report, "run")?;
    let cause = failed["cause"].as_str().unwrap_or_default();
    ensure!(
        cause.starts_with("it ended with exit code 3 (Error) after ") && cause.ends_with(": why"),
        "{cause}"
    );
    ensure!(failed["place"] == "container", "{failed}");
    Ok(())
}

async fn gone(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut app = sleeper("app");
    app["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 1}}});
    let wanted = pod("brief", node.agent.node(), json!([app]));
    let first = pods.create(wanted.clone()).await?;
    pods.wait_ready("brief", LIMIT).await?;
    pods.delete("brief", LIMIT).await?;
    let report = until("it is gone", LIMIT, async || {
        let report = node.agent.why("brief").await?;
        Ok((report["phase"] == "Gone").then_some(report))
    })
    .await?;
    let stop = stage(&report, "stop")?;
    let order = [
        "asked",
        "preStop app",
        "stopped app",
        "sandboxStopped",
        "volumesUnmounted",
        "objectRemoved",
        "removed",
    ];
    ensure!(in_order(&done(stop), &order), "{stop:#}");
    let hook = stop["steps"].as_array().into_iter().flatten().find(|s| s["step"] == "preStop").cloned();
    ensure!(hook.unwrap_or_default()["seconds"].as_f64().is_some_and(|s| s >= 1.0), "{stop:#}");
    ensure!(
        in_order(&done(stage(&report, "start")?), &["sandbox", "started app", "ready app"]),
        "{report:#}"
    );
    ensure!(report["summary"].as_str().is_some_and(|s| s.ends_with(": it was deleted")), "{report:#}");

    let second = pods.create(wanted).await?;
    pods.wait_ready("brief", LIMIT).await?;
    let report = node.agent.why("brief").await?;
    ensure!(report["uid"] == uid(&second), "{report:#}");
    ensure!(
        report["others"][0]["uid"] == uid(&first) && report["others"][0]["goneAt"].is_string(),
        "{report:#}"
    );
    let text = node.agent.why_with(&["brief"]).await?;
    ensure!(text.contains(&format!("keelson why {}", uid(&first))), "{text}");
    ensure!(node.agent.why(&uid(&first)).await?["phase"] == "Gone");
    let error = refused(node.agent.why_with(&["breif"]).await)?;
    ensure!(error.contains("no pod called breif") && error.contains("similar: default/brief"), "{error}");
    let error = refused(node.agent.why_with(&["brief", "-n", "other"]).await)?;
    ensure!(error.contains("in namespace other"), "{error}");
    Ok(())
}

fn refused(answer: Result<String>) -> Result<String> {
    match answer {
        Ok(answer) => anyhow::bail!("answered with {answer}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

async fn restarted(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    pods.create(pod("steady", node.agent.node(), json!([sleeper("app")]))).await?;
    pods.wait_ready("steady", LIMIT).await?;
    node.agent.kill()?;
    node.agent.restart().await?;
    let report = until("the pod is known again", LIMIT, async || {
        let report = node.agent.why("steady").await?;
        Ok((report["ready"] == true).then_some(report))
    })
    .await?;
    let start = stage(&report, "start")?;
    ensure!(done(start) == ["sandbox", "created app", "started app"], "{start:#}");
    ensure!(start["seconds"].is_null() && start["steps"][0]["seconds"].is_null(), "{start:#}");
    let text = node.agent.why_with(&["steady"]).await?;
    ensure!(text.contains("before this agent was started"), "{text}");
    let metrics = metrics(cluster, node).await?;
    let line = "kubelet_pod_start_duration_seconds_count 0";
    ensure!(metrics.lines().any(|l| l == line), "a start that this agent has not seen is counted");
    Ok(())
}

async fn apiserver_away(cluster: &mut Cluster, node: &Node, dir: &Path) -> Result<()> {
    let pods = cluster.pods();
    let flag = dir.join("flag");
    std::fs::create_dir_all(&flag)?;
    let mut app = sleeper("app");
    app["readinessProbe"] = json!({"exec": {"command": ["test", "-e", "/flag/x"]}, "periodSeconds": 1});
    app["volumeMounts"] = json!([{"name": "flag", "mountPath": "/flag"}]);
    let mut wanted = pod("kept", node.agent.node(), json!([app]));
    wanted["spec"]["volumes"] = json!([{"name": "flag", "hostPath": {"path": flag}}]);
    pods.create(wanted).await?;
    waits_for(&node.agent, "kept", "its readiness probe has not succeeded").await?;
    cluster.plane.kill_apiserver()?;
    std::fs::write(flag.join("x"), "")?;
    until_true("it is ready here", LIMIT, async || Ok(node.agent.why("kept").await?["ready"] == true))
        .await?;
    let wait = waits_for(&node.agent, "kept", "the apiserver does not have its latest status").await?;
    ensure!(wait["since"].is_string(), "{wait}");
    let report = node.agent.why("kept").await?;
    ensure!(failure(&report, "status")?["place"] == "apiserver", "{report:#}");
    node.agent.place_manifest("static.yaml", &manifest("static", BUSYBOX))?;
    until_true("a static pod's start is shown", LIMIT, async || {
        let report = node.agent.why("static-node").await?;
        Ok(in_order(&done(stage(&report, "start")?), &["seen", "sandbox", "started main", "ready main"]))
    })
    .await?;
    node.agent.remove_manifest("static.yaml")?;
    cluster.plane.restart_apiserver().await?;
    until_true("the status is written", LIMIT, async || {
        let report = node.agent.why("kept").await?;
        Ok(report["now"] == json!([]))
    })
    .await
}

fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  \
         - name: main\n    image: {image}\n    imagePullPolicy: IfNotPresent\n    command: [sh, -c, \"{SLEEP}\"]\n"
    )
}

async fn standalone(node: &Node) -> Result<()> {
    let agent = &node.agent;
    agent.place_manifest("web.yaml", &manifest("web", BUSYBOX))?;
    agent.place_manifest("wrong.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: [\n")?;
    let report = until("web is ready", LIMIT, async || {
        let report = agent.why("web-alone").await?;
        Ok((report["ready"] == true).then_some(report))
    })
    .await?;
    let start = stage(&report, "start")?;
    ensure!(
        in_order(&done(start), &["seen", "admitted", "sandbox", "pull main", "started main", "ready main"]),
        "{start:#}"
    );
    ensure!(!done(start).iter().any(|s| s == "reported") && report["source"] == "file", "{start:#}");
    let refused = agent.why("wrong.yaml").await?;
    ensure!(refused["phase"] == "Refused", "{refused:#}");

    // Another text of the manifest is another pod, and the first one is remembered.
    let first = report["uid"].as_str().unwrap_or_default().to_owned();
    let other = manifest("web", BUSYBOX).replace("GracePeriodSeconds: 1", "GracePeriodSeconds: 2");
    agent.place_manifest("web.yaml", &other)?;
    until_true("the new text's pod is ready, the old one's is remembered", LIMIT, async || {
        let report = agent.why("web-alone").await?;
        let hint = report["others"]
            .as_array()
            .is_some_and(|o| o.iter().any(|o| o["uid"] == *first && o["goneAt"].is_string()));
        Ok(report["ready"] == true && report["uid"] != *first && hint)
    })
    .await?;
    agent.remove_manifest("web.yaml")?;
    agent.remove_manifest("wrong.yaml")?;
    until_true("web is gone", LIMIT, async || Ok(agent.why("web-alone").await?["phase"] == "Gone")).await
}
