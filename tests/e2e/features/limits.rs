//! What is passed on to the runtime and the kernel: resources and cgroups, users and rights, namespaces and names.

use anyhow::{Context, Result, ensure};
use keelson_tests::cgroups;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::images::NAMED_USER;
use keelson_tests::pods::{pod, sleeper, uid};
use keelson_tests::suite::Suite;
use serde_json::json;

use super::{LIMIT, exec};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    suite
        .case(
            "requests and limits arrive in the pod's and the container's cgroup",
            LIMIT * 2,
            resources(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
    suite.case("users, groups and rights", LIMIT * 2, security(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite
        .case(
            "runAsNonRoot refuses root and refuses a name it cannot judge",
            LIMIT * 2,
            non_root(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
    suite.case("host namespaces, host names and resolv.conf", LIMIT * 2, names(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("the node's object describes the machine", LIMIT * 2, node_object(cluster, node)).await;
}

async fn resources(cluster: &Cluster, node: &Node) -> Result<()> {
    let mut burstable = sleeper("main");
    burstable["resources"] =
        json!({"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"memory": "64Mi", "cpu": "250m"}});
    let mut guaranteed = sleeper("main");
    guaranteed["resources"] = json!({"limits": {"cpu": "100m", "memory": "32Mi"}});
    let pods = cluster.pods();
    for (name, container) in
        [("burstable", burstable), ("guaranteed", guaranteed), ("besteffort", sleeper("main"))]
    {
        pods.create(pod(name, node.agent.node(), json!([container]))).await?;
    }
    for (name, parent, class) in [
        ("burstable", "kubepods/burstable/", "Burstable"),
        ("guaranteed", "kubepods/", "Guaranteed"),
        ("besteffort", "kubepods/besteffort/", "BestEffort"),
    ] {
        let ready = pods.wait_ready(name, LIMIT).await?;
        let said = ready.status.as_ref().and_then(|s| s.qos_class.clone());
        ensure!(said.as_deref() == Some(class), "{name} is {said:?}");
        let wanted = format!("{}/{parent}pod{}", node.agent.cgroup_root(), uid(&ready));
        ensure!(cgroups::below(&node.agent.cgroup_root()).contains(&wanted), "there is no cgroup {wanted}");
        if name == "burstable" {
            let memory = cgroups::value(&wanted, "memory", "memory.limit_in_bytes", "memory.max")?;
            ensure!(memory == "67108864", "the pod's memory limit is {memory}");
            let quota = cgroups::value(&wanted, "cpu", "cpu.cfs_quota_us", "cpu.max")?;
            ensure!(quota.starts_with("25000"), "the pod's CPU quota is {quota}");
            let pages = cgroups::value(&wanted, "hugetlb", "hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.max");
            ensure!(pages.as_ref().map_or(true, |p| p == "0"), "the pod may have huge pages: {pages:?}");
        }
    }
    // The file of whichever version of cgroups this machine has.
    let line = "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes 2>/dev/null || cat memory.max";
    let seen = exec(node, "burstable", "main", line).await?;
    ensure!(seen.trim() == "67108864", "inside, the memory limit is {seen:?}");
    // No swap: v1 counts it together with memory. Neither file is there where the kernel cannot bound swap.
    let line = "cd /sys/fs/cgroup; for f in memory/memory.memsw.limit_in_bytes memory.swap.max; do [ ! -e $f ] || cat $f; done";
    let swap = exec(node, "burstable", "main", line).await?;
    ensure!(matches!(swap.trim(), "67108864" | "0" | ""), "inside, the limit of swap is {swap:?}");
    let line = "[ ! -e /sys/fs/cgroup/memory.oom.group ] || cat /sys/fs/cgroup/memory.oom.group";
    let group = exec(node, "burstable", "main", line).await?;
    ensure!(matches!(group.trim(), "1" | ""), "one process alone would be killed: {group:?}");
    for name in ["burstable", "guaranteed", "besteffort"] {
        pods.delete(name, LIMIT).await?;
    }
    Ok(())
}

async fn security(cluster: &Cluster, node: &Node) -> Result<()> {
    let mut container = sleeper("main");
    container["securityContext"] = json!({
        "runAsUser": 1000, "runAsGroup": 2000, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
    });
    container["volumeMounts"] = json!([{"name": "tmp", "mountPath": "/tmp"}]);
    let mut tight = pod("tight", node.agent.node(), json!([container]));
    tight["spec"]["securityContext"] =
        json!({"supplementalGroups": [3000], "fsGroup": 4000, "seccompProfile": {"type": "RuntimeDefault"}});
    tight["spec"]["volumes"] = json!([{"name": "tmp", "emptyDir": {}}]);
    let pods = cluster.pods();
    pods.create(tight).await?;
    pods.wait_ready("tight", LIMIT).await?;
    let status = exec(
        node,
        "tight",
        "main",
        "id -u; id -g; id -G; cat /proc/self/status; stat -c %g /tmp; touch /x 2>&1; true",
    )
    .await?;
    let has = |line: &str| status.lines().any(|l| l.replace('\t', " ").trim() == line);
    ensure!(has("1000") && has("2000"), "user and group: {status}");
    ensure!(status.contains("3000") && status.contains("4000"), "supplemental groups: {status}");
    ensure!(has("NoNewPrivs: 1") && has("Seccomp: 2") && has("CapBnd: 0000000000000400"), "rights: {status}");
    ensure!(status.contains("Read-only file system"), "the root is writable: {status}");
    pods.delete("tight", LIMIT).await
}

async fn non_root(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut root = sleeper("main");
    root["securityContext"] = json!({"runAsNonRoot": true});
    let mut named = root.clone();
    named["image"] = json!(NAMED_USER);
    pods.create(pod("root", node.agent.node(), json!([root]))).await?;
    pods.create(pod("named", node.agent.node(), json!([named]))).await?;
    for name in ["root", "named"] {
        pods.wait_waiting(name, "CreateContainerConfigError", LIMIT).await?;
        ensure!(node.runtime.containers_of(name).await?.is_empty(), "a container of {name} was made");
        pods.delete(name, LIMIT).await?;
    }
    Ok(())
}

async fn names(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut host = pod("host", node.agent.node(), json!([sleeper("main")]));
    host["spec"]["hostNetwork"] = json!(true);
    host["spec"]["dnsPolicy"] = json!("Default");
    let mut named = pod("named-host", node.agent.node(), json!([sleeper("main")]));
    named["spec"]["hostname"] = json!("ann");
    named["spec"]["subdomain"] = json!("team");
    named["spec"]["shareProcessNamespace"] = json!(true);
    named["spec"]["hostAliases"] = json!([{"ip": "192.0.2.99", "hostnames": ["far.example"]}]);
    pods.create(host).await?;
    pods.create(named).await?;
    let on_host = pods.wait_ready("host", LIMIT).await?;
    ensure!(
        keelson_tests::pods::ip(&on_host).as_deref() == Some("192.0.2.10"),
        "a host network pod's IP is the node's"
    );
    ensure!(exec(node, "host", "main", "ip addr show rig0").await?.contains("192.0.2.10"));
    pods.wait_ready("named-host", LIMIT).await?;
    let inside = exec(node, "named-host", "main", "hostname; cat /etc/hosts /etc/resolv.conf; ps").await?;
    ensure!(inside.starts_with("ann\n"), "the host name: {inside}");
    ensure!(
        inside.contains("ann.team.default.svc.cluster.local") && inside.contains("far.example"),
        "/etc/hosts: {inside}"
    );
    ensure!(inside.contains("nameserver 10.96.0.10"), "resolv.conf: {inside}");
    ensure!(
        inside.contains("search default.svc.cluster.local svc.cluster.local cluster.local"),
        "resolv.conf: {inside}"
    );
    ensure!(inside.contains("pause"), "the processes are not shared: {inside}");
    pods.delete("host", LIMIT).await?;
    pods.delete("named-host", LIMIT).await
}

async fn node_object(cluster: &Cluster, node: &Node) -> Result<()> {
    let object = cluster.node_object(node.agent.node()).await?;
    let labels = object.metadata.labels.clone().unwrap_or_default();
    ensure!(
        labels.get("kubernetes.io/hostname").is_some_and(|v| v == node.agent.node()),
        "labels are {labels:?}"
    );
    ensure!(labels.get("kubernetes.io/os").is_some_and(|v| v == "linux"), "labels are {labels:?}");
    let status = object.status.context("no status")?;
    let capacity = status.capacity.unwrap_or_default();
    let allocatable = status.allocatable.unwrap_or_default();
    for resource in ["cpu", "memory", "pods", "ephemeral-storage"] {
        ensure!(
            capacity.contains_key(resource) && allocatable.contains_key(resource),
            "{resource} is not reported"
        );
    }
    let addresses = status.addresses.unwrap_or_default();
    ensure!(
        addresses.iter().any(|a| a.type_ == "InternalIP" && a.address == "192.0.2.10"),
        "addresses are {addresses:?}"
    );
    let declared = status.declared_features.unwrap_or_default();
    let able = [
        "InPlacePodLevelResourcesVerticalScaling",
        "InPlacePodVerticalScalingInitContainers",
        "RestartAllContainersOnContainerExits",
    ];
    ensure!(declared == able, "it declares {declared:?}");
    let info = status.node_info.context("no nodeInfo")?;
    ensure!(info.container_runtime_version.starts_with("containerd://2."), "nodeInfo is {info:?}");
    ensure!(!info.machine_id.is_empty() || !info.boot_id.is_empty(), "nodeInfo is {info:?}");
    ensure!(info.kubelet_version.starts_with('v'), "kubeletVersion is {}", info.kubelet_version);
    let images = status.images.unwrap_or_default();
    ensure!(
        images.iter().any(|i| i.names.iter().flatten().any(|n| n.contains("busybox"))),
        "images are {images:?}"
    );
    let kinds: Vec<_> = status.conditions.unwrap_or_default().into_iter().map(|c| c.type_).collect();
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        ensure!(kinds.iter().any(|k| k == kind), "{kind} is not among {kinds:?}");
    }
    Ok(())
}
