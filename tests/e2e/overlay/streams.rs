//! A daemon that is killed and started again while pods talk: the stream goes on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::hosts::{all_reach_all, inside};
use keelson_tests::process::Daemon;
use keelson_tests::wait::until_true;
use rustix::process::Signal;
use serde_json::Value;

use super::Trio;
use super::etcd::Etcd;

pub async fn killed(etcd: &Etcd, trio: &mut Trio, backend: &str) -> Result<()> {
    trio.clear().await?;
    etcd.wipe().await?;
    etcd.configure(backend).await?;
    let flags = ["--etcd-endpoints", etcd.url.as_str()];
    trio.start(&flags).await?;
    all_reach_all(&trio.pods).await?;
    let (client, server) = (trio.pods[0].clone(), trio.pods[1].clone());
    let to = server.v4()?;
    let _listener = iperf(&server.netns, &["-s", "-1"], &trio.hosts[1].dir.join("iperf-server.log"))?;
    until_true("iperf3 listens", Duration::from_secs(10), async || {
        Ok(inside(&server.netns, "ss -Hltn sport = :5201").await?.contains("5201"))
    })
    .await?;
    let report = trio.hosts[0].dir.join(format!("iperf-{backend}.json"));
    let target = to.to_string();
    let mut stream = iperf(&client.netns, &["-c", &target, "-t", "5", "-J", "--get-server-output"], &report)?;
    until_true("the stream runs", Duration::from_secs(10), async || {
        Ok(inside(&client.netns, "ss -Htn state established").await?.contains(":5201"))
    })
    .await?;
    for number in [0, 1] {
        let host = &mut trio.hosts[number];
        let (pings, log) = pinging(&client.netns, &target, &host.dir.join(format!("ping-{backend}.log")))?;
        until_true("pings come back", Duration::from_secs(10), async || {
            Ok(std::fs::read_to_string(&log)?.contains("seq=9 "))
        })
        .await?;
        host.kill_overlay()?;
        if backend != "udp" {
            // Nothing may be lost while nobody is there.
            let answer = inside(&client.netns, &format!("busybox ping -c 20 -i 0.02 -W 1 {to}")).await?;
            ensure!(answer.contains(" 0% packet loss"), "{answer}");
        }
        host.start_overlay(&flags)?;
        host.wait_ready().await?;
        let answer = inside(&client.netns, &format!("busybox ping -c 10 -i 0.02 -W 1 {to}")).await?;
        ensure!(answer.contains(" 0% packet loss"), "after the restart: {answer}");
        let (sent, lost) = count(pings, &log).await?;
        let gap = lost * PING_EVERY.as_millis() as u64;
        println!(
            "  {backend}: killed -9 and started again on host {}: {lost} of {sent} pings lost, {gap} ms",
            number + 1
        );
        ensure!(backend == "udp" || lost == 0, "{lost} of {sent} packets were lost");
    }
    let ended = stream.ended(Duration::from_secs(30)).await?;
    let text = std::fs::read_to_string(&report)?;
    ensure!(ended.success(), "the stream broke: {text}");
    let result: Value = serde_json::from_str(&text).context("iperf3's report")?;
    let bytes = result["end"]["sum_received"]["bytes"].as_f64().unwrap_or_default();
    ensure!(bytes > 1e6, "hardly anything got through: {bytes} bytes");
    Ok(())
}

const PING_EVERY: Duration = Duration::from_millis(10);

/// Pings until it is stopped, and where it writes.
fn pinging(netns: &str, to: &str, log: &Path) -> Result<(Daemon, PathBuf)> {
    let _ = std::fs::remove_file(log);
    let every = PING_EVERY.as_secs_f32().to_string();
    let mut command = std::process::Command::new("ip");
    command.args(["netns", "exec", netns, "busybox", "ping", "-i", &every, "-W", "1", to]);
    Ok((Daemon::spawn("ping", command, log)?, log.to_owned()))
}

/// How many were sent, up to the last that came back, and how many of them did not. What was sent after that is on its way.
async fn count(mut pings: Daemon, log: &Path) -> Result<(u64, u64)> {
    pings.signal(Signal::INT)?;
    pings.ended(Duration::from_secs(10)).await?;
    let text = std::fs::read_to_string(log)?;
    let answered = |line: &str| line.split_once(" seq=")?.1.split(' ').next()?.parse::<u64>().ok();
    let answers: BTreeSet<u64> = text.lines().filter_map(answered).collect();
    let sent = answers.last().with_context(|| format!("no answer: {text}"))? + 1;
    Ok((sent, sent - answers.len() as u64))
}

fn iperf(netns: &str, args: &[&str], log: &Path) -> Result<Daemon> {
    let _ = std::fs::remove_file(log);
    let mut command = std::process::Command::new("ip");
    command.args(["netns", "exec", netns, "iperf3"]).args(args);
    Daemon::spawn("iperf3", command, log)
}
