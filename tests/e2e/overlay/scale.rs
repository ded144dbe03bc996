//! Five thousand peers: one that changes costs what it costs among fifty.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::hosts::Host;
use keelson_tests::wait::until_true;
use serde_json::json;

use super::Trio;
use super::etcd::Etcd;

const FEW: usize = 50;
const MANY: usize = 5000;
/// Peers that change one after the other.
const COUNTED: usize = 11;
const TIMED: usize = 40;
const SOON: Duration = Duration::from_secs(60);

/// What some changes of single peers cost.
#[derive(Debug)]
struct Cost {
    /// Of one change: messages to the kernel, bytes back from it, and processor time.
    requests: u64,
    bytes: u64,
    milliseconds: f64,
}

pub async fn flat(etcd: &Etcd, trio: &mut Trio, backend: &str) -> Result<()> {
    trio.clear().await?;
    etcd.wipe().await?;
    let conf = json!({"Network": "10.64.0.0/10", "SubnetLen": 24, "Backend": {"Type": backend}});
    etcd.put("/coreos.com/network/config", &conf.to_string()).await?;
    let host = &mut trio.hosts[0];
    // Room for all of them on one link, which host-gw needs.
    host.ip("addr replace 172.20.0.1/16 dev eth0").await?;
    join(etcd, backend, 0..FEW).await?;
    // Nothing but the changes is to be counted.
    let quiet = ["--check-every", "3600", "--probe-every", "0"];
    host.start_overlay(&[&["--etcd-endpoints", &etcd.url], &quiet[..]].concat())?;
    host.wait_ready().await?;
    peers(host, FEW).await?;
    let few = change(etcd, host, backend, 0).await?;
    join(etcd, backend, FEW..MANY).await?;
    peers(host, MANY).await?;
    let many = change(etcd, host, backend, 1).await?;
    let full = full_reconcile(host, backend).await?;
    // Killed and started again with all of them.
    let rss = resident(host, "VmRSS")?;
    host.kill_overlay()?;
    host.start_overlay(&[&["--etcd-endpoints", &etcd.url], &quiet[..]].concat())?;
    host.wait_ready().await?;
    peers(host, MANY).await?;
    println!(
        "  {backend}: a change costs {:.2} ms of CPU, {} messages, {} bytes with {FEW} peers; {:.2} ms, {}, {} \
         with {MANY}; a full reconcile {full:.1} ms; RSS with {MANY} {:.1} MiB, after a start with them {:.1} (peak {:.1}, anonymous {:.1})",
        few.milliseconds,
        few.requests,
        few.bytes,
        many.milliseconds,
        many.requests,
        many.bytes,
        rss,
        resident(host, "VmRSS")?,
        resident(host, "VmHWM")?,
        resident(host, "RssAnon")?,
    );
    ensure!(
        many.requests <= few.requests && many.bytes <= few.bytes,
        "a change costs more among many: {few:?} became {many:?}"
    );
    host.stop_overlay().await?;
    host.ip("addr del 172.20.0.1/16 dev eth0").await.map(drop)
}

/// The lease of a peer; `turn` gives it another address.
fn lease(number: usize, turn: usize, backend: &str) -> (String, String) {
    let (high, low) = (number >> 8, number & 0xff);
    let key = format!("/coreos.com/network/subnets/10.{}.{low}.0-24", 65 + high);
    let mut value = json!({
        "PublicIP": format!("172.20.{}.{low}", 16 + 32 * turn + high), "PublicIPv6": null, "BackendType": backend,
    });
    if backend == "vxlan" {
        value["BackendData"] = json!({"VNI": 1, "VtepMAC": format!("6a:00:00:00:{high:02x}:{low:02x}")});
    }
    (key, value.to_string())
}

async fn join(etcd: &Etcd, backend: &str, numbers: std::ops::Range<usize>) -> Result<()> {
    etcd.put_all(numbers.map(|number| lease(number, 0, backend)).collect()).await
}

async fn peers(host: &Host, count: usize) -> Result<()> {
    until_true(&format!("{} serves {count} peers", host.name), SOON, async || {
        Ok(host.status().await?["peers"].as_array().is_some_and(|peers| peers.len() == count))
    })
    .await
}

/// Moves some peers to another address, one at a time: first counted one by one, then timed together. What lies in the
/// middle is reported, because a full reconcile may fall among them, such as the one that follows a crowd of newcomers.
async fn change(etcd: &Etcd, host: &Host, backend: &str, turn: usize) -> Result<Cost> {
    let mut numbers = 0..;
    let mut next = async || -> Result<()> {
        let done = follows(host);
        let (key, value) = lease(numbers.next().unwrap_or_default(), 1 + turn, backend);
        etcd.put(&key, &value).await?;
        until_true("the change is followed", SOON, async || Ok(follows(host) > done)).await
    };
    let (mut requests, mut bytes) = (Vec::new(), Vec::new());
    let mut before = counted(host).await?;
    for _ in 0..COUNTED {
        next().await?;
        let after = counted(host).await?;
        requests.push(after.0 - before.0);
        bytes.push(after.1 - before.1);
        before = after;
    }
    let cpu = cpu_ms(host)?;
    for _ in 0..TIMED {
        next().await?;
    }
    let milliseconds = (cpu_ms(host)? - cpu) / TIMED as f64;
    let median = |mut list: Vec<u64>| {
        list.sort_unstable();
        list[list.len() / 2]
    };
    Ok(Cost { requests: median(requests), bytes: median(bytes), milliseconds })
}

/// Messages that the kernel was sent so far, and bytes that came back.
async fn counted(host: &Host) -> Result<(u64, u64)> {
    let status = host.status().await?;
    let number = |name: &str| status[name].as_u64().context("not counted");
    Ok((number("kernel_requests")?, number("kernel_bytes")?))
}

fn follows(host: &Host) -> usize {
    host.log().matches("the network follows its leases").count()
}

/// Has the daemon reconcile everything, by breaking something; its CPU time in milliseconds.
async fn full_reconcile(host: &Host, backend: &str) -> Result<f64> {
    let repairs = || host.log().matches("put right what somebody changed").count();
    let (before, cpu) = (repairs(), cpu_ms(host)?);
    let victim = if backend == "udp" { "10.64.0.0/10" } else { "10.66.7.0/24" };
    host.ip(&format!("route del {victim}")).await?;
    until_true("the route is back", SOON, async || Ok(repairs() > before)).await?;
    Ok(cpu_ms(host)? - cpu)
}

fn process(host: &Host) -> Result<PathBuf> {
    Ok(PathBuf::from(format!("/proc/{}", host.overlay_pid().context("no overlay runs")?)))
}

/// Processor time of all threads so far.
fn cpu_ms(host: &Host) -> Result<f64> {
    let mut total = 0.0;
    for task in std::fs::read_dir(process(host)?.join("task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        total += text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e6;
    }
    Ok(total)
}

fn resident(host: &Host, field: &str) -> Result<f64> {
    let text = std::fs::read_to_string(process(host)?.join("status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
    let kib: f64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
