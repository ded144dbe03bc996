//! What the runtime adds to the network's configuration (CNI's capabilities) is what the plugins read, shown on what each
//! generation of the real runtime writes. Of the conventions' capabilities containerd fills in portMappings, bandwidth, dns and,
//! from 2.x on, cgroupPath; ips, mac, ipRanges and infinibandGUID are other runtimes' (`cni-plugins/tests/capabilities.rs`).

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use keelson_cni::bridge::BridgeConf;
use keelson_cni::host_local::IpamConf;
use keelson_cni::portmap::PortmapConf;
use keelson_cni::skel::{Call, CniVersion, Env, NetworkName};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::isolation::NODE_IP;
use keelson_tests::leftovers;
use keelson_tests::pods::{SLEEP, pod, shell};
use keelson_tests::wait::until_true;
use serde_json::{Value, json};

use super::{LIMIT, fetch};

const PORT: u16 = 18081;

pub async fn capabilities(cluster: &Cluster, node: &Node, kind: Kind) -> Result<()> {
    let network = node.containerd.network();
    let before = network.read()?;
    let kept = network.record(&["bridge", "portmap"])?;
    let seen = async {
        network.write(&with_capabilities(&before)?)?;
        until_true("the runtime has loaded the network", LIMIT, async || {
            Ok(node.runtime.network_config().await?.contains("cgroupPath"))
        })
        .await?;
        recorded(cluster, node, kind, &kept).await
    };
    let seen = seen.await;
    network.stop_recording()?;
    network.write(&before)?;
    until_true("the runtime has loaded the network that it had", LIMIT, async || {
        Ok(!node.runtime.network_config().await?.contains("cgroupPath"))
    })
    .await?;
    seen
}

/// Every plugin of the network asks for all that there is.
fn with_capabilities(conf: &str) -> Result<String> {
    let all = [
        "portMappings",
        "ipRanges",
        "bandwidth",
        "dns",
        "ips",
        "mac",
        "infinibandGUID",
        "cgroupPath",
        "io.kubernetes.cri.pod-annotations",
    ];
    let all: Value = all.iter().map(|name| ((*name).to_owned(), json!(true))).collect();
    let mut conf: Value = serde_json::from_str(conf)?;
    for plugin in conf["plugins"].as_array_mut().context("no plugins")? {
        plugin["capabilities"] = all.clone();
    }
    Ok(conf.to_string())
}

async fn recorded(cluster: &Cluster, node: &Node, kind: Kind, kept: &Path) -> Result<()> {
    let pods = cluster.pods();
    let mut web = shell("web", &format!("echo here >/www/page && httpd -p 8080 -h /www; {SLEEP}"));
    web["ports"] = json!([
        {"containerPort": 8080, "hostPort": PORT},
        {"containerPort": 5353, "hostPort": 18053, "protocol": "UDP", "hostIP": NODE_IP},
    ]);
    web["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
    let mut asks = pod("asks", node.agent.node(), json!([web]));
    asks["metadata"]["annotations"] =
        json!({"kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "20M"});
    asks["spec"]["dnsPolicy"] = json!("None");
    asks["spec"]["dnsConfig"] = json!({
        "nameservers": ["192.0.2.53"], "searches": ["a.example"], "options": [{"name": "ndots", "value": "3"}],
    });
    pods.create(asks).await?;
    pods.wait_ready("asks", LIMIT).await?;
    let page = fetch(NODE_IP, PORT, "/page").await.context("by the host's address")?;
    ensure!(page.ends_with("here\n"), "the page is {page:?}");
    let sandboxes = node.runtime.sandboxes_of("asks").await?;
    let id = &sandboxes.first().context("no sandbox")?.id;
    for command in ["ADD", "DEL"] {
        if command == "DEL" {
            pods.delete("asks", LIMIT).await?;
            leftovers::wait_clean(node, Duration::from_secs(20)).await?;
        }
        for plugin in ["bridge", "portmap"] {
            let file = kept.join(format!("{command}.{plugin}.{id}"));
            let text = fs::read_to_string(&file).with_context(|| format!("no {command} of {plugin}"))?;
            written(&text, kind).and_then(|()| read(&text, plugin, node)).with_context(|| text.clone())?;
        }
    }
    Ok(())
}

/// What the pod asked for, as the runtime wrote it, whatever it calls the keys.
fn written(text: &str, kind: Kind) -> Result<()> {
    let conf: Value = serde_json::from_str(text)?;
    let added = find(&conf, "runtimeConfig").context("the runtime adds nothing")?;
    let path = |keys: &[&str]| keys.iter().try_fold(added, |value, key| find(value, key)).cloned();
    ensure!(path(&["dns", "servers"]) == Some(json!(["192.0.2.53"])), "dns");
    ensure!(path(&["dns", "searches"]) == Some(json!(["a.example"])), "dns");
    ensure!(path(&["dns", "options"]) == Some(json!(["ndots:3"])), "dns");
    ensure!(path(&["bandwidth", "ingressRate"]) == Some(json!(10_000_000)), "bandwidth");
    ensure!(path(&["bandwidth", "egressRate"]) == Some(json!(20_000_000)), "bandwidth");
    let annotations = path(&["io.kubernetes.cri.pod-annotations", "kubernetes.io/ingress-bandwidth"]);
    ensure!(annotations == Some(json!("10M")), "annotations");
    let cgroup = path(&["cgroupPath"]);
    ensure!(
        kind == Kind::Distribution || cgroup.is_some_and(|c| c.as_str().is_some_and(|c| !c.is_empty())),
        "cgroup"
    );
    Ok(())
}

fn find<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.as_object()?.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
}

/// The same through the plugins' own readers.
fn read(text: &str, plugin: &str, node: &Node) -> Result<()> {
    let call = Call {
        version: CniVersion::V100,
        network: NetworkName::parse("rig").map_err(|e| anyhow!("{e}"))?,
        conf: serde_json::from_str(text)?,
        stdin: Vec::new(),
        netns_path: String::new(),
        netns: None,
        args: String::new(),
        env: Env::default(),
    };
    if plugin == "bridge" {
        let bridge = BridgeConf::load(&call).map_err(|e| anyhow!("bridge: {e}"))?;
        ensure!(
            bridge.bridge.as_str() == node.containerd.network().bridge && bridge.mac.is_none(),
            "bridge read something else"
        );
        let ipam = IpamConf::load(&call).map_err(|e| anyhow!("host-local: {e}"))?;
        ensure!(ipam.requested.is_empty() && ipam.ranges.len() == 1, "host-local read something else");
    }
    let portmap = PortmapConf::load(&call).map_err(|e| anyhow!("portmap: {e}"))?;
    let mut mappings: Vec<String> = portmap
        .mappings
        .iter()
        .map(|m| format!("{:?}:{} {} {}", m.host_ip, m.host_port, m.container_port, m.protocol))
        .collect();
    mappings.sort();
    let udp = format!("Some({NODE_IP}):18053 5353 udp");
    ensure!(mappings == [format!("None:{PORT} 8080 tcp"), udp], "portmap read {mappings:?}");
    Ok(())
}
