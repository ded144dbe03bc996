//! One of the three hosts is run by the real flanneld, which knows nothing of us.

use std::time::Duration;

use anyhow::{Context, Result};
use keelson_tests::hosts::all_reach_all;
use keelson_tests::parts::Part;
use keelson_tests::process::Daemon;
use keelson_tests::wait::until;
use serde_json::{Value, json};

use super::Trio;
use super::etcd::{Etcd, NETWORK};
use super::kube::Access;

pub async fn by_etcd(etcd: &Etcd, trio: &mut Trio, backend: &str) -> Result<()> {
    trio.clear().await?;
    etcd.wipe().await?;
    let conf = json!({"Network": NETWORK, "EnableNFTables": true, "Backend": {"Type": backend}});
    etcd.put("/coreos.com/network/config", &conf.to_string()).await?;
    let flags = vec!["--etcd-endpoints".to_owned(), etcd.url.clone()];
    together(trio, &flags).await
}

pub async fn by_kube(access: &Access, trio: &mut Trio, backend: &str) -> Result<()> {
    trio.clear().await?;
    access.register().await?;
    // flannel's udp backend knows IPv4 only.
    let flags = access.flags(trio, backend, backend != "udp")?;
    together(trio, &flags).await
}

/// Starts flanneld on the third host and ours on the others, all with the same flags.
async fn together(trio: &mut Trio, flags: &[String]) -> Result<()> {
    let mut flanneld = start(trio, flags)?;
    let ours: Vec<&str> = flags.iter().map(String::as_str).collect();
    for host in &mut trio.hosts[..2] {
        host.start_overlay(&ours)?;
    }
    let env = trio.hosts[2].dir.join("subnet.env");
    let subnets = until("flanneld has a subnet", Duration::from_secs(40), async || {
        flanneld.check_alive()?;
        let text = std::fs::read_to_string(&env).unwrap_or_default();
        let lines = text.lines().filter(|l| l.contains("SUBNET=")).filter_map(|l| l.split('=').nth(1));
        let subnets: Vec<String> = lines.map(str::to_owned).collect();
        Ok((text.contains("FLANNEL_MTU") && !subnets.is_empty()).then_some(subnets))
    })
    .await?;
    for host in &mut trio.hosts[..2] {
        host.wait_ready().await?;
        trio.pods.push(host.add_pod().await?);
    }
    trio.pods.push(trio.hosts[2].add_pod_with(&bridge(&subnets)).await.context("a pod on flanneld's host")?);
    let outcome = all_reach_all(&trio.pods).await;
    let _ = flanneld.kill();
    outcome
}

fn start(trio: &Trio, flags: &[String]) -> Result<Daemon> {
    let host = &trio.hosts[2];
    let mut args = flags.to_vec();
    args.extend([
        "--subnet-file".into(),
        host.dir.join("subnet.env").display().to_string(),
        "--ip-masq".into(),
    ]);
    host.spawn("flanneld", &Part::Flanneld.program()?, &args, &[("NODE_NAME", "h3")])
}

/// The network that a CNI plugin would make of flanneld's file.
fn bridge(subnets: &[String]) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|net| json!([{"subnet": net_of(net)}])).collect();
    let routes: Vec<Value> = subnets
        .iter()
        .map(|net| json!({"dst": if net.contains(':') { "::/0" } else { "0.0.0.0/0" }}))
        .collect();
    json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "mtu": 1400,
           "ipam": {"type": "host-local", "ranges": ranges, "routes": routes}})
}

/// The network around flanneld's first address, which ends in a one.
fn net_of(first: &str) -> String {
    match first.split_once('/') {
        Some((addr, len)) => {
            format!("{}0/{len}", addr.strip_suffix('1').unwrap_or(addr)).replace("::0/", "::/")
        }
        None => first.to_owned(),
    }
}
