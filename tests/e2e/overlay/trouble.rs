//! What is wrong between hosts is reported, and packets of strangers are dropped.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::hosts::{self, Host, WIRE, all_reach_all};
use keelson_tests::wait::until_true;
use serde_json::{Value, json};

use super::Trio;
use super::etcd::{Etcd, NETWORK};

const SOON: Duration = Duration::from_secs(30);

async fn fresh(etcd: &Etcd, trio: &mut Trio, backend: Value) -> Result<()> {
    trio.clear().await?;
    etcd.wipe().await?;
    let conf = json!({"Network": NETWORK, "Backend": backend});
    etcd.put("/coreos.com/network/config", &conf.to_string()).await?;
    let health = ["--healthz-ip", "127.0.0.1", "--healthz-port", "10253"];
    trio.start(
        &[&["--etcd-endpoints", &etcd.url, "--probe-every", "1", "--check-every", "2"], &health[..]].concat(),
    )
    .await?;
    all_reach_all(&trio.pods).await
}

/// Of the first host, about the one with that address.
async fn peer(host: &Host, public: &str) -> Result<Value> {
    let status = host.status().await?;
    let peers = status["peers"].as_array().cloned().unwrap_or_default();
    peers.into_iter().find(|p| p["public"] == public).with_context(|| format!("no peer {public}"))
}

async fn says(host: &Host, public: &str, text: &str) -> Result<()> {
    let what = format!("{} says of {public}: {text:?}", host.name);
    until_true(&what, SOON, async || {
        let peer = peer(host, public).await?;
        ensure!(peer["problems"].to_string().contains(text), "it says {peer}");
        Ok(true)
    })
    .await
}

async fn is_well(host: &Host, public: &str) -> Result<()> {
    until_true(&format!("{} finds nothing wrong with {public}", host.name), SOON, async || {
        let peer = peer(host, public).await?;
        ensure!(
            peer["problems"] == json!([]) && peer["rtt"].is_number() && peer["mtu"] == 1450,
            "it says {peer}"
        );
        Ok(true)
    })
    .await
}

async fn filter(host: &Host, on: bool) -> Result<()> {
    let lines = match on {
        true => vec![
            "nft add table inet wall",
            "nft add chain inet wall input {type filter hook input priority -20;}",
            "nft add rule inet wall input udp dport 8472 drop",
        ],
        false => vec!["nft delete table inet wall"],
    };
    for line in lines {
        host.run(line).await?;
    }
    Ok(())
}

pub async fn reported(etcd: &Etcd, trio: &mut Trio) -> Result<()> {
    fresh(etcd, trio, json!({"Type": "vxlan"})).await?;
    let second = "198.51.100.2";
    is_well(&trio.hosts[0], second).await?;
    let asked = async |path: &str| {
        trio.hosts[0].run(&format!("busybox wget -qO- http://127.0.0.1:10253{path}")).await
    };
    ensure!(asked("/readyz").await? == "ok");
    let metrics = asked("/metrics").await?;
    for line in ["keelson_overlay_peers 2\n", "keelson_overlay_ready 1\n", "keelson_overlay_peer_loss_ratio{"]
    {
        ensure!(metrics.contains(line), "no {line:?} in {metrics}");
    }

    filter(&trio.hosts[1], true).await?;
    says(&trio.hosts[0], second, "UDP port 8472 is filtered").await?;
    filter(&trio.hosts[1], false).await?;
    is_well(&trio.hosts[0], second).await?;

    // The way to the second host takes less than both hosts assume.
    hosts::ip("link set w2 mtu 1400").await?;
    says(&trio.hosts[0], second, "is too small: pods may send 1450 bytes").await?;
    let found = peer(&trio.hosts[0], second).await?["mtu"].as_u64();
    // A bridge lets four bytes more pass than its port's MTU, for a VLAN tag.
    ensure!(found.is_some_and(|mtu| (1345..=1354).contains(&mtu)), "it finds an MTU of {found:?}");
    hosts::ip("link set w2 mtu 1500").await?;
    is_well(&trio.hosts[0], second).await?;

    trio.hosts[1].connect(false).await?;
    says(&trio.hosts[0], second, "does not answer at all").await?;
    trio.hosts[1].connect(true).await?;
    is_well(&trio.hosts[0], second).await?;
    strangers(trio).await
}

/// Without a lease, or with somebody else's source, nothing gets in.
async fn strangers(trio: &Trio) -> Result<()> {
    let (host, pod) = (&trio.hosts[0], trio.pods[0].v4()?);
    let far = trio.pods[1].v4()?;
    let counted = async |name: &str| -> Result<u64> {
        let counters = host.status().await?["counters"].as_array().cloned().unwrap_or_default();
        Ok(counters.iter().find(|c| c[0] == name).and_then(|c| c[1].as_u64()).unwrap_or(0))
    };
    let mac = host.ip("-o link show flannel.1").await?;
    let mac = mac.split("link/ether ").nth(1).and_then(|m| m.split(' ').next()).context("no MAC")?;
    for line in [
        format!("link add strange type vxlan id 1 dstport 8472 remote 198.51.100.1 local {WIRE} dev wire"),
        format!("addr add {far}/32 dev strange"),
        "link set strange up".to_owned(),
        format!("neigh add {pod} lladdr {mac} dev strange"),
        format!("route add {pod}/32 dev strange"),
    ] {
        hosts::ip(&line).await?;
    }
    // Nobody answers, and it is counted.
    let answered = keelson_tests::process::output("busybox", &["ping", "-c2", "-W1", &pod.to_string()]).await;
    hosts::ip("link del strange").await?;
    ensure!(answered.is_err(), "a host without a lease was answered");
    until_true("strangers are counted", SOON, async || Ok(counted("tunnel_from_stranger").await? > 0))
        .await?;

    trio.hosts[1].ip("addr add 10.5.250.7/32 dev lo").await?;
    let answered = trio.hosts[1].run(&format!("busybox ping -c2 -W1 -I 10.5.250.7 {pod}")).await;
    ensure!(answered.is_err(), "a source of nobody's was answered");
    until_true("strange sources are counted", SOON, async || Ok(counted("tunnel_strange_source").await? > 0))
        .await?;
    trio.hosts[1].ip("addr del 10.5.250.7/32 dev lo").await.map(drop)
}

/// Both families of a peer are probed, each by itself: one may be broken while the other works.
pub async fn both_families(etcd: &Etcd, trio: &mut Trio) -> Result<()> {
    trio.clear().await?;
    etcd.wipe().await?;
    etcd.configure("vxlan").await?;
    trio.start(&["--etcd-endpoints", &etcd.url, "--probe-every", "1"]).await?;
    all_reach_all(&trio.pods).await?;
    let host = &trio.hosts[0];
    let well = async |second: bool| {
        until_true("both ways to the second host are well", SOON, async || {
            let peer = peer(host, "198.51.100.2").await?;
            let other = &peer["second"];
            ensure!(other["public"] == "2001:db8:1::2", "it says {peer}");
            let (first, other) = (peer["mtu"] == 1430, other["mtu"] == 1430 && other["rtt"].is_number());
            ensure!(first && other == second, "it says {peer}");
            Ok(second == (peer["problems"] == json!([])))
        })
        .await
    };
    well(true).await?;
    for line in [
        "nft add table ip6 wall",
        "nft add chain ip6 wall input {type filter hook input priority -20;}",
        "nft add rule ip6 wall input udp dport 8472 drop",
    ] {
        trio.hosts[1].run(line).await?;
    }
    says(host, "198.51.100.2", "2001:db8:1::2 is up but nothing comes back through the overlay").await?;
    well(false).await?;
    trio.hosts[1].run("nft delete table ip6 wall").await?;
    well(true).await
}

pub async fn falls_back(etcd: &Etcd, trio: &mut Trio) -> Result<()> {
    fresh(etcd, trio, json!({"Type": "vxlan", "Fallback": "udp"})).await?;
    let second = "198.51.100.2";
    is_well(&trio.hosts[0], second).await?;
    filter(&trio.hosts[1], true).await?;
    let path = async |wanted: &str| {
        until_true(&format!("the second host is reached by {wanted}"), SOON, async || {
            Ok(peer(&trio.hosts[0], second).await?["path"] == wanted)
        })
        .await
    };
    path("udp").await?;
    trio.pods[0].reaches(trio.pods[1].v4()?).await?;
    trio.pods[1].reaches(trio.pods[2].v4()?).await?;
    filter(&trio.hosts[1], false).await?;
    path("vxlan").await?;
    all_reach_all(&trio.pods).await
}

/// One host, nobody to share with: a subnet and a network for pods, and nothing between hosts.
pub async fn alone(trio: &mut Trio) -> Result<()> {
    trio.clear().await?;
    let host = &mut trio.hosts[0];
    let path = host.dir.join("alone.json");
    std::fs::write(&path, json!({"Network": "10.7.0.0/16"}).to_string())?;
    host.start_overlay(&["--backend", "none", "--net-config-path", &path.display().to_string()])?;
    host.wait_ready().await?;
    let (one, two) = (host.add_pod().await?, host.add_pod().await?);
    trio.pods.extend([one.clone(), two.clone()]);
    one.reaches(two.v4()?).await?;
    // What leaves the pod network has the host's address: the wire knows no way back to a pod.
    one.reaches(WIRE.parse()?).await
}
