//! The Node object: what others write there counts at once, and it is there for as long as the agent is.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as ApiNode;
use keelson_tests::agent::Agent;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::objects::wait_for;
use keelson_tests::pods::{Pods, pod, sleeper};
use keelson_tests::process::output;
use keelson_tests::relay::Relay;
use keelson_tests::suite::{Suite, folder};
use keelson_tests::wait::until_true;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::LIMIT;

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    let case = "a label of the node counts as soon as it is there, a taint no longer when it is gone";
    suite.case(case, LIMIT * 2, labels_and_taints(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("a node that was deleted is registered again", LIMIT, deleted(cluster, node)).await;
    cluster.reset(suite, node).await;
    let dir = folder(suite.dir(), "other-agents");
    suite
        .case("a cloud controller initializes a node and writes its addresses", LIMIT * 2, async {
            in_a_cloud(cluster, node, &dir?).await
        })
        .await;
    let dir = folder(suite.dir(), "other-agents");
    suite
        .case("a node shows one address of the host and follows it", LIMIT, async {
            follows_address(cluster, node, &dir?).await
        })
        .await;
    let dir = folder(suite.dir(), "other-agents");
    suite
        .case("a node whose connection has silently died goes on renewing its lease", LIMIT, async {
            silent_connection(cluster, node, &dir?).await
        })
        .await;
}

async fn labels_and_taints(cluster: &Cluster, node: &Node) -> Result<()> {
    let (pods, kubectl, name) = (cluster.pods(), &cluster.kubectl, node.agent.node());
    let choosy = |pod_name: &str| -> Value {
        let mut pod = pod(pod_name, name, json!([sleeper("main")]));
        pod["spec"]["nodeSelector"] = json!({"disk": "fast"});
        pod["spec"]["tolerations"] = json!([]);
        pod
    };
    pods.create(choosy("early")).await?;
    let refused = pods.wait_phase("early", "Failed", LIMIT).await?;
    let status = refused.status.unwrap_or_default();
    let (reason, message) = (status.reason.unwrap_or_default(), status.message.unwrap_or_default());
    ensure!(reason == "NodeAffinity", "without the label it was refused for {reason}");
    ensure!(message.starts_with("Pod was rejected: "), "its message is {message:?}");
    ensure!(status.container_statuses.is_none(), "nothing ran, but it shows {:?}", status.container_statuses);
    kubectl.run(&["label", "node", name, "disk=fast"]).await?;
    pods.create(choosy("choosy")).await?;
    pods.wait_ready("choosy", LIMIT).await?;
    pods.delete("choosy", LIMIT).await?;
    kubectl.run(&["taint", "node", name, "maintenance=now:NoExecute"]).await?;
    refused_for_taint(&pods, &choosy).await?;
    kubectl.run(&["taint", "node", name, "maintenance-"]).await?;
    pods.create(choosy("let-in")).await?;
    pods.wait_ready("let-in", LIMIT).await?;
    kubectl.run(&["label", "node", name, "disk-"]).await?;
    kubectl.run(&["delete", "pod", "--all", "--wait=true", "--timeout=30s"]).await.map(drop)
}

/// The controllers delete such a pod as well. One that they delete before the agent has seen it is refused by nobody, and another
/// one is tried.
async fn refused_for_taint(pods: &Pods, choosy: &impl Fn(&str) -> Value) -> Result<()> {
    for attempt in 0..20 {
        let name = format!("kept-out-{attempt}");
        pods.create(choosy(&name)).await?;
        let mut reasons = vec![];
        until_true("the pod is refused or deleted", LIMIT, async || {
            let here = pods.list().await?.iter().any(|p| p.metadata.name.as_deref() == Some(&name));
            reasons = pods.event_reasons(&name).await?;
            Ok(!here || reasons.iter().any(|r| r == "TaintToleration"))
        })
        .await?;
        if reasons.iter().any(|r| r == "TaintToleration") {
            return Ok(());
        }
        ensure!(!reasons.iter().any(|r| r == "Started"), "it ran: {reasons:?}");
    }
    bail!("20 pods were deleted, and none was refused")
}

async fn deleted(cluster: &Cluster, node: &Node) -> Result<()> {
    let (nodes, name) = (Api::<ApiNode>::all(cluster.client.clone()), node.agent.node());
    let uid = nodes.get(name).await?.metadata.uid;
    nodes.delete(name, &DeleteParams::default()).await?;
    let again = wait_for(&nodes, name, "registered again", LIMIT, |n| n.metadata.uid != uid).await?;
    let labels = again.metadata.labels.unwrap_or_default();
    ensure!(labels.get("kubernetes.io/os").is_some_and(|os| os == "linux"), "its labels are {labels:?}");
    cluster.wait_node_ready(name, true, LIMIT).await.map(drop)
}

async fn in_a_cloud(cluster: &Cluster, node: &Node, dir: &Path) -> Result<()> {
    const NAME: &str = "cloudy";
    let (kubectl, nodes) = (&cluster.kubectl, Api::<ApiNode>::all(cluster.client.clone()));
    let mut options = cluster.options(NAME, &node.containerd, json!({"nodeStatusUpdateFrequency": "1s"}))?;
    options.flags.push("--cloud-provider=external".into());
    let mut agent = Agent::start(dir, options).await?;
    let new = wait_for(&nodes, NAME, "registered", LIMIT, |_| true).await?;
    let taints = new.spec.and_then(|s| s.taints).unwrap_or_default();
    ensure!(
        taints
            .iter()
            .any(|t| t.key == "node.cloudprovider.kubernetes.io/uninitialized" && t.effect == "NoSchedule"),
        "its taints are {taints:?}"
    );
    let told = new.metadata.annotations.unwrap_or_default().remove("alpha.kubernetes.io/provided-node-ip");
    ensure!(told.as_deref() == Some("192.0.2.10"), "the controller is told {told:?}");
    // What a cloud controller does; then something that makes the agent write the status once more.
    let addresses = r#"{"status":{"addresses":[{"$patch":"replace"},{"type":"InternalIP","address":"192.0.2.10"},
        {"type":"ExternalIP","address":"198.51.100.7"}]}}"#;
    kubectl.run(&["patch", "node", NAME, "--subresource=status", "-p", addresses]).await?;
    kubectl.run(&["label", "node", NAME, "kubernetes.io/os-"]).await?;
    let written = wait_for(&nodes, NAME, "the agent put its label back", LIMIT, |n| {
        n.metadata.labels.as_ref().is_some_and(|l| l.contains_key("kubernetes.io/os"))
    })
    .await?;
    let addresses = written.status.and_then(|s| s.addresses).context("no addresses")?;
    ensure!(addresses.iter().any(|a| a.address == "198.51.100.7"), "the agent overwrote them: {addresses:?}");
    agent.stop().await?;
    nodes.delete(NAME, &DeleteParams::default()).await?;
    Ok(())
}

async fn follows_address(cluster: &Cluster, node: &Node, dir: &Path) -> Result<()> {
    // A name that the resolver answers at once, by an address that no node can have.
    const NAME: &str = "localhost";
    let nodes = Api::<ApiNode>::all(cluster.client.clone());
    let mut options = cluster.options(NAME, &node.containerd, json!({}))?;
    options.flags.push("--node-ip=::".into());
    let mut agent = Agent::start(dir, options).await?;
    let shows = |wanted: &'static str| {
        move |node: &ApiNode| {
            let addresses = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
            let internal: Vec<_> =
                addresses.filter(|a| a.type_ == "InternalIP").map(|a| &a.address).collect();
            internal == [wanted]
        }
    };
    wait_for(&nodes, NAME, "one address of two families", LIMIT, shows("2001:db8::10")).await?;
    let ip = async |line: &str| output("ip", &line.split(' ').collect::<Vec<_>>()).await;
    ip("-6 addr add 2001:db8::11/64 dev rig0 nodad").await?;
    ip("-6 addr del 2001:db8::10/64 dev rig0").await?;
    let followed = wait_for(&nodes, NAME, "the new address", LIMIT, shows("2001:db8::11")).await;
    ip("-6 addr add 2001:db8::10/64 dev rig0 nodad").await?;
    ip("-6 addr del 2001:db8::11/64 dev rig0").await?;
    followed?;
    agent.stop().await?;
    nodes.delete(NAME, &DeleteParams::default()).await?;
    Ok(())
}

async fn silent_connection(cluster: &Cluster, node: &Node, dir: &Path) -> Result<()> {
    const NAME: &str = "distant";
    // Shorter than it takes pings to find a dead connection.
    let limit = Duration::from_secs(30);
    let port = cluster.plane.apiserver_port();
    let relay = Relay::start(port).await?;
    let mut options = cluster.options(NAME, &node.containerd, json!({"nodeLeaseDurationSeconds": 4}))?;
    let direct = std::fs::read_to_string(options.kubeconfig.take().context("no kubeconfig")?)?;
    let relayed = dir.join("relayed.conf");
    std::fs::write(&relayed, direct.replace(&port.to_string(), &relay.port().to_string()))?;
    options.kubeconfig = Some(relayed);
    let mut agent = Agent::start(dir, options).await?;
    let leases = Api::<Lease>::namespaced(cluster.client.clone(), "kube-node-lease");
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|s| s.renew_time.as_ref()).map(|time| time.0);
    let held = |lease: &Lease| lease.metadata.owner_references.is_some() && renewed(lease).is_some();
    wait_for(&leases, NAME, "the lease is held", LIMIT, held).await?;
    relay.forget_connections();
    let last = renewed(&leases.get(NAME).await?).context("not renewed")?;
    // What was under way may still have arrived.
    let later = move |lease: &Lease| renewed(lease).is_some_and(|at| at.duration_since(last).as_secs() >= 2);
    wait_for(&leases, NAME, "it is renewed over another connection", limit, later).await?;
    agent.stop().await?;
    Api::<ApiNode>::all(cluster.client.clone()).delete(NAME, &DeleteParams::default()).await?;
    Ok(())
}
