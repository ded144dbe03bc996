//! What the node, its pods and its containers use: as a summary, as metrics, and as `kubectl top` shows it.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::parts::Part;
use keelson_tests::pods::{SLEEP, pod, shell, sleeper, uid};
use keelson_tests::process::Daemon;
use keelson_tests::suite::Suite;
use keelson_tests::wait::{free_port, until, until_true};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let cluster = Cluster::start(suite.dir(), Extent::WithoutScheduler).await?;
    for (number, kind, name) in [(1, Kind::V2, "v2"), (2, Kind::Distribution, "v1")] {
        let mut node = cluster.join(name, number, kind, json!({})).await?;
        let titled = |what: &str| format!("containerd {name}: {what}");
        make(&cluster, &node).await?;
        suite.case(&titled("a summary adds up"), LIMIT, summary(&cluster, &node)).await;
        suite.case(&titled("metrics are what dashboards read"), LIMIT, metrics(&cluster, &node)).await;
        if kind == Kind::V2 {
            let (case, dir) = ("kubectl top, by metrics-server", suite.dir().to_owned());
            match Part::MetricsServer.available() {
                Ok(()) => suite.case(case, LIMIT * 3, top(&cluster, &node, &dir)).await,
                Err(missing) => suite.leave_out(case, &missing),
            }
        }
        cluster.reset(suite, &mut node).await;
        node.agent.stop().await?;
    }
    Ok(())
}

/// One that works, with a volume that holds something and a probe, and one that rests.
async fn make(cluster: &Cluster, node: &Node) -> Result<()> {
    let mounted = |mut container: Value| {
        container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        container
    };
    // Disks are measured once in a while: what is to be found must be there before they are.
    let init = mounted(shell("init", "head -c 3000000 /dev/zero >/data/file"));
    let mut busy = mounted(shell("main", &format!("(while :; do :; done) & {SLEEP}")));
    busy["resources"] = json!({"limits": {"memory": "64Mi", "cpu": "200m"}});
    busy["livenessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let mut manifest = pod("busy", node.agent.node(), json!([busy, sleeper("side")]));
    manifest["spec"]["initContainers"] = json!([init]);
    manifest["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    cluster.pods().create(manifest).await?;
    cluster.pods().create(pod("calm", node.agent.node(), json!([sleeper("main")]))).await?;
    cluster.pods().wait_ready("busy", LIMIT).await?;
    cluster.pods().wait_ready("calm", LIMIT).await?;
    Ok(())
}

async fn get(cluster: &Cluster, node: &Node, path: &str) -> Result<String> {
    let path = format!("/api/v1/nodes/{}/proxy/{path}", node.agent.node());
    cluster.kubectl.run(&["get", "--raw", &path]).await
}

async fn summary(cluster: &Cluster, node: &Node) -> Result<()> {
    let ask =
        async |path: &str| -> Result<Value> { Ok(serde_json::from_str(&get(cluster, node, path).await?)?) };
    ask("stats/summary").await?;
    // The rate of the processor takes two samples, a second apart.
    let both = until("the busy container's rate is known", LIMIT, async || {
        let summary = ask("stats/summary").await?;
        let rate = summary.pointer("/pods/0/containers/0/cpu/usageNanoCores").and_then(Value::as_u64);
        Ok(rate.filter(|r| *r > 10_000_000).map(|_| summary))
    })
    .await?;
    let pods = both["pods"].as_array().context("no pods")?;
    let names: Vec<_> = pods.iter().filter_map(|p| p["podRef"]["name"].as_str()).collect();
    ensure!(names == ["busy", "calm"], "pods {names:?}");
    let busy = &pods[0];
    ensure!(busy["podRef"]["uid"] == uid(&cluster.pods().get("busy").await?), "{}", busy["podRef"]);
    let number = |pointer: &str| both.pointer(pointer).and_then(Value::as_u64);
    let above = |pointer: &str, least: u64| -> Result<()> {
        let found = number(pointer).with_context(|| format!("no {pointer} in {both}"))?;
        ensure!(found >= least, "{pointer} is {found}");
        Ok(())
    };
    let cores = number("/pods/0/containers/0/cpu/usageNanoCores").unwrap_or(0);
    ensure!(cores < 400_000_000, "limited to a fifth of a processor, yet {cores}");
    for (pointer, least) in [
        ("/node/cpu/usageCoreNanoSeconds", 1_000_000_000),
        ("/node/memory/workingSetBytes", 10 << 20),
        ("/node/memory/availableBytes", 1 << 20),
        ("/node/fs/capacityBytes", 1 << 20),
        ("/node/runtime/imageFs/capacityBytes", 1 << 20),
        ("/node/rlimit/maxpid", 100),
        ("/node/rlimit/curproc", 10),
        ("/pods/0/cpu/usageCoreNanoSeconds", 10_000_000),
        ("/pods/0/memory/workingSetBytes", 4096),
        ("/pods/0/containers/0/memory/workingSetBytes", 4096),
        ("/pods/0/containers/0/memory/availableBytes", 1 << 20),
        ("/pods/0/containers/0/logs/capacityBytes", 1),
        ("/pods/0/network/interfaces/0/txBytes", 1),
        ("/pods/0/process_stats/process_count", 4),
        ("/pods/0/ephemeral-storage/usedBytes", 3_000_000),
    ] {
        above(pointer, least)?;
    }
    let volumes = busy["volume"].as_array().context("no volumes")?;
    let data = volumes.iter().find(|v| v["name"] == "data").context("no volume data")?;
    ensure!(data["usedBytes"].as_u64() >= Some(3_000_000), "{data}");
    ensure!(busy.pointer("/network/name").is_some_and(|n| n == "eth0"), "{}", busy["network"]);
    let containers: Vec<_> = busy["containers"].as_array().context("no containers")?.iter().collect();
    let names: Vec<_> = containers.iter().filter_map(|c| c["name"].as_str()).collect();
    ensure!(names.len() == 2 && names.contains(&"main") && names.contains(&"side"), "{names:?}");
    let system = both["node"]["systemContainers"].as_array().context("no system containers")?;
    ensure!(system.iter().any(|s| s["name"] == "pods"), "{system:?}");

    let brief = ask("stats/summary?only_cpu_and_memory=true").await?;
    let busy = &brief["pods"][0];
    ensure!(busy["cpu"].is_object() && busy["memory"].is_object(), "{busy}");
    for left_out in ["network", "volume", "ephemeral-storage"] {
        ensure!(busy.get(left_out).is_none(), "{left_out} in {busy}");
    }
    ensure!(brief["node"].get("fs").is_none(), "{}", brief["node"]);
    Ok(())
}

/// Series and values of a text in Prometheus' format; an error where it is none.
fn parse(text: &str) -> Result<Vec<(String, f64)>> {
    let mut samples = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let end = line.rfind('}').map_or_else(|| line.find(' ').unwrap_or(0), |at| at + 1);
        let (series, rest) = line.split_at(end);
        let value = rest.split_whitespace().next().and_then(|v| v.parse().ok());
        samples.push((series.to_owned(), value.with_context(|| format!("no sample: {line:?}"))?));
    }
    Ok(samples)
}

async fn metrics(cluster: &Cluster, node: &Node) -> Result<()> {
    let value = |samples: &[(String, f64)], parts: &[&str]| -> Result<f64> {
        let found = samples.iter().find(|(series, _)| parts.iter().all(|p| series.contains(p)));
        found.map(|(_, v)| *v).with_context(|| format!("no series with {parts:?}"))
    };
    let resource = parse(&get(cluster, node, "metrics/resource").await?)?;
    let main = ["container=\"main\"", "pod=\"busy\"", "namespace=\"default\""];
    ensure!(value(&resource, &[&["container_cpu_usage_seconds_total"][..], &main].concat())? > 0.01);
    ensure!(value(&resource, &[&["container_memory_working_set_bytes"][..], &main].concat())? > 4096.0);
    ensure!(value(&resource, &["pod_cpu_usage_seconds_total", "pod=\"busy\""])? > 0.01);
    ensure!(value(&resource, &["node_memory_working_set_bytes"])? > 1e7);
    ensure!(value(&resource, &["resource_scrape_error"])? == 0.0);

    let cadvisor = parse(&get(cluster, node, "metrics/cadvisor").await?)?;
    ensure!(
        value(&cadvisor, &[&["container_cpu_usage_seconds_total", "cpu=\"total\""][..], &main].concat())?
            > 0.01
    );
    ensure!(
        value(&cadvisor, &[&["container_spec_memory_limit_bytes"][..], &main].concat())?
            == f64::from(64 << 20)
    );
    ensure!(value(&cadvisor, &[&["container_spec_cpu_quota"][..], &main].concat())? == 20_000.0);
    ensure!(
        value(&cadvisor, &["container_network_transmit_bytes_total", "pod=\"busy\"", "interface=\"eth0\""])?
            > 0.0
    );
    ensure!(value(&cadvisor, &["machine_cpu_cores"])? >= 1.0);

    let own = parse(&get(cluster, node, "metrics").await?)?;
    ensure!(value(&own, &["kubelet_node_name", node.agent.node()])? == 1.0);
    ensure!(value(&own, &["kubelet_running_pods"])? == 2.0);
    ensure!(value(&own, &["kubelet_running_containers", "container_state=\"running\""])? == 3.0);
    ensure!(value(&own, &["kubelet_pod_start_duration_seconds_count"])? >= 2.0);
    ensure!(value(&own, &["kubelet_runtime_operations_total", "\"run_podsandbox\""])? >= 2.0);
    ensure!(value(&own, &["kubelet_runtime_operations_duration_seconds_sum", "\"start_container\""])? > 0.0);
    ensure!(value(&own, &["process_resident_memory_bytes"])? > 1e6);

    until_true("the probe is counted", LIMIT, async || {
        let probes = parse(&get(cluster, node, "metrics/probes").await?)?;
        let labels = [
            "prober_probe_total",
            "container=\"main\"",
            "pod=\"busy\"",
            "probe_type=\"Liveness\"",
            "successful",
        ];
        Ok(value(&probes, &labels)? >= 1.0)
    })
    .await
}

/// metrics-server as it is installed everywhere, but for where it listens, and not as a pod.
async fn top(cluster: &Cluster, node: &Node, dir: &std::path::Path) -> Result<()> {
    let port = free_port()?;
    let mut command = Command::new(Part::MetricsServer.program()?);
    let admin = cluster.plane.admin().display().to_string();
    command
        .args([
            "--kubeconfig",
            &admin,
            "--authentication-kubeconfig",
            &admin,
            "--authorization-kubeconfig",
            &admin,
        ])
        .args([
            "--secure-port",
            &port.to_string(),
            "--metric-resolution=10s",
            "--kubelet-request-timeout=5s",
            "--cert-dir",
        ])
        .arg(dir.join("metrics-server"))
        .args(["--kubelet-preferred-address-types=InternalIP", "--kubelet-use-node-status-port"])
        .arg(format!("--kubelet-certificate-authority={}", cluster.plane.ca_file().display()));
    let mut server = Daemon::spawn("metrics-server", command, &dir.join("metrics-server.log"))?;
    let service = json!({
        "apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics-server", "namespace": "kube-system"},
             "spec": {"type": "ExternalName", "externalName": "localhost"}},
            {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
             "metadata": {"name": "v1beta1.metrics.k8s.io"},
             "spec": {"group": "metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": true,
                      "groupPriorityMinimum": 100, "versionPriority": 100,
                      "service": {"name": "metrics-server", "namespace": "kube-system", "port": port}}},
        ],
    });
    cluster.kubectl.apply(&service.to_string()).await?;
    let pods = until("kubectl top pods shows both", LIMIT * 2, async || {
        server.check_alive()?;
        let shown = cluster.kubectl.run(&["top", "pods", "--containers", "--no-headers"]).await?;
        Ok((shown.contains("busy") && shown.contains("calm")).then_some(shown))
    })
    .await?;
    let busy = pods.lines().find(|l| l.contains("busy") && l.contains("main")).context("no busy")?;
    let cores = busy.split_whitespace().nth(2).and_then(|c| c.strip_suffix('m')?.parse::<u64>().ok());
    ensure!(cores.is_some_and(|c| (1..=400).contains(&c)), "a fifth of a processor: {busy}");
    let nodes = cluster.kubectl.run(&["top", "nodes", "--no-headers"]).await?;
    ensure!(nodes.starts_with(node.agent.node()) && nodes.contains('%'), "kubectl top nodes: {nodes}");
    Ok(())
}
