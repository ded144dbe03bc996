//! The node's API beside a kubelet's, and an earlier build's: how quickly a log streams, how long an exec takes, what
//! /stats/summary costs, and what many who stay connected cost. They take turns; requests go to the node directly.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use keelson_tests::agent::Agent;
use keelson_tests::cluster::Cluster;
use keelson_tests::containerd::{Containerd, Kind};
use keelson_tests::control_plane::Extent;
use keelson_tests::node_api::{Credentials, NodeApi, Stream};
use keelson_tests::pods::{SLEEP, pod, shell, sleeper};
use keelson_tests::suite::{Suite, folder};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::usage::{cpu_seconds, memory_mib};
use crate::{KEELSON, KUBELET, exec, setting, websocket};

const LIMIT: Duration = Duration::from_secs(300);

pub struct Peer {
    pub name: &'static str,
    api: NodeApi,
    who: Credentials,
    agent: Agent,
    pub containerd: Containerd,
    /// MB a second, one for each round.
    streamed: Vec<f64>,
    stream_cpu: f64,
    /// With this pod alone, and with many more.
    pub exec: Vec<exec::Took>,
    summary_cpu: f64,
    summary: Vec<f64>,
    rss: f64,
}

pub async fn body(suite: &mut Suite) -> Result<()> {
    let dir = suite.dir().to_owned();
    let cluster = Cluster::start(&dir, Extent::WithoutScheduler).await?;
    let mut peers = Vec::new();
    for ((name, program), number) in crate::agents()?.into_iter().zip(1..) {
        peers.push(join(&cluster, &dir, (name, &program), number).await?);
    }
    streams(&cluster, &mut peers).await?;
    let few = exec::measure(&mut peers).await?;
    connected(&mut peers).await?;
    fill(&cluster, &peers).await?;
    let many = exec::measure(&mut peers).await?;
    summaries(&mut peers).await?;
    print(&peers, &few, &many);
    Ok(())
}

async fn join(
    cluster: &Cluster,
    dir: &Path,
    (name, program): (&'static str, &Path),
    number: u8,
) -> Result<Peer> {
    let dir = folder(dir, name)?;
    let containerd = Containerd::start(Kind::V2, &dir, number).await?;
    let config = json!({"containerLogMaxSize": "10Gi"});
    let options = cluster.options(name, &containerd, config)?;
    let agent = crate::start(name, program, &dir, options).await?;
    cluster.wait_node_ready(name, true, Duration::from_secs(60)).await?;
    let api = NodeApi::new(agent.api_port()?, &cluster.plane.ca_file())?;
    Ok(Peer {
        name,
        api,
        who: Credentials::pair(&cluster.plane.kubelet_client()),
        agent,
        containerd,
        streamed: vec![],
        stream_cpu: 0.0,
        exec: vec![],
        summary_cpu: 0.0,
        summary: vec![],
        rss: 0.0,
    })
}

/// A log of a million lines, read to its end again and again.
async fn streams(cluster: &Cluster, peers: &mut [Peer]) -> Result<()> {
    let lines = setting("BENCH_LOG_LINES", 1_000_000);
    println!("a log of {lines} lines");
    let text = "0123456789".repeat(8);
    let line =
        format!("awk 'BEGIN {{ for (i = 1; i <= {lines}; i++) print i, \"{text}\" }}'; touch /done; {SLEEP}");
    for peer in peers.iter() {
        let name = format!("{}-log", peer.name);
        let mut main = shell("main", &line);
        main["readinessProbe"] = json!({"exec": {"command": ["test", "-e", "/done"]}, "periodSeconds": 1});
        cluster.pods().create(pod(&name, peer.name, json!([main]))).await?;
    }
    for peer in peers.iter() {
        cluster.pods().wait_ready(&format!("{}-log", peer.name), LIMIT).await?;
    }
    for _ in 0..setting("BENCH_STREAMS", 5) {
        for peer in peers.iter_mut() {
            let path = format!("/containerLogs/default/{}-log/main", peer.name);
            let cpu = cpu_seconds(peer.process()?)?;
            let began = Instant::now();
            let bytes = drain(peer.get(&path).await?).await?;
            peer.streamed.push(bytes as f64 / 1e6 / began.elapsed().as_secs_f64());
            peer.stream_cpu += cpu_seconds(peer.process()?)? - cpu;
        }
    }
    Ok(())
}

/// Fifty who follow a log and fifty whose ports are forwarded, all at rest.
async fn connected(peers: &mut [Peer]) -> Result<()> {
    println!("50 followers and 50 port-forwards");
    for peer in peers.iter_mut() {
        let mut open: Vec<Stream> = Vec::new();
        for _ in 0..50 {
            let path = format!("/containerLogs/default/{}-log/main?follow=true&tailLines=1", peer.name);
            let mut stream = peer.get(&path).await?;
            stream.read_u8().await.context("a follower that sees nothing")?;
            open.push(stream);
            let path = format!("/portForward/default/{}-log?port=80", peer.name);
            open.push(peer.websocket(&path).await?);
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        peer.rss = memory_mib(peer.process()?)?.0;
    }
    Ok(())
}

/// As many pods on each, all of them Ready.
async fn fill(cluster: &Cluster, peers: &[Peer]) -> Result<()> {
    let count = setting("BENCH_PODS", 100);
    println!("{count} pods on each");
    let all = || peers.iter().flat_map(|p| (0..count).map(move |n| (p.name, format!("{}-{n}", p.name))));
    for (node, name) in all() {
        cluster.pods().create(pod(&name, node, json!([sleeper("main")]))).await?;
    }
    for (_, name) in all() {
        cluster.pods().wait_ready(&name, LIMIT).await?;
    }
    // What follows the last start is nobody's cost.
    tokio::time::sleep(Duration::from_secs(5)).await;
    Ok(())
}

/// A summary every second.
async fn summaries(peers: &mut [Peer]) -> Result<()> {
    let (count, rounds) = (setting("BENCH_PODS", 100), setting("BENCH_SUMMARIES", 20));
    for peer in peers.iter_mut() {
        println!("{}: a summary a second", peer.name);
        let process = peer.process()?;
        let (before, began) = (cpu_seconds(process)?, Instant::now());
        tokio::time::sleep(Duration::from_secs(rounds.into())).await;
        let idle = (cpu_seconds(process)? - before) / began.elapsed().as_secs_f64();
        println!("{}: {:.2} % of a core when nobody asks", peer.name, idle * 100.0);
        let before = cpu_seconds(process)?;
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        for _ in 0..rounds {
            ticks.tick().await;
            let asked = Instant::now();
            let bytes = drain(peer.get("/stats/summary").await?).await?;
            anyhow::ensure!(bytes > u64::from(count) * 500, "a summary of {bytes} bytes");
            peer.summary.push(asked.elapsed().as_secs_f64() * 1e3);
        }
        ticks.tick().await;
        // All that the agent uses in that second: a kubelet measures in the background, whether asked or not.
        peer.summary_cpu = (cpu_seconds(process)? - before) / f64::from(rounds) * 1e3;
    }
    Ok(())
}

/// Reads to the end and returns how many bytes came, the marks between chunks included.
pub async fn drain(mut stream: impl AsyncRead + Unpin) -> Result<u64> {
    let (mut total, mut buffer) = (0, vec![0; 256 << 10]);
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) => return Ok(total),
            Ok(n) => total += n as u64,
            // A peer that ends without saying so at the TLS level has ended all the same.
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(total),
            Err(e) => return Err(e.into()),
        }
    }
}

impl Peer {
    /// On a connection of its own, which ends with the answer.
    async fn get(&self, path: &str) -> Result<Stream> {
        let (answer, stream) = self.api.open(&self.who, "GET", path, &[("Connection", "close")]).await?;
        anyhow::ensure!(answer.status == 200, "{path} was answered {answer:?}");
        Ok(stream)
    }

    pub async fn websocket(&self, path: &str) -> Result<Stream> {
        let (answer, stream) = self.api.open(&self.who, "GET", path, &websocket::HEADERS).await?;
        anyhow::ensure!(answer.status == 101, "{path} was answered {answer:?}");
        Ok(stream)
    }

    fn process(&self) -> Result<u32> {
        self.agent.process_id().with_context(|| format!("{} does not run", self.name))
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// What it is, a peer's figure, and the runtime's own.
type Row<'a> = (&'a str, &'a dyn Fn(&Peer) -> f64, Option<f64>);

fn print(peers: &[Peer], few: &exec::Took, many: &exec::Took) {
    let exec = |p: &Peer, at: usize| p.exec.get(at).map_or(f64::NAN, |took| median(&took.whole));
    let echo = |p: &Peer, at: usize| p.exec.get(at).map_or(f64::NAN, |took| median(&took.echoed));
    let rows: [Row; 9] = [
        ("log streaming, p50 (MB/s)", &|p| median(&p.streamed), None),
        ("agent CPU of all streams (s)", &|p| p.stream_cpu, None),
        ("exec and its end, p50 (ms)", &|p| exec(p, 0), Some(median(&few.whole))),
        ("the same with many pods (ms)", &|p| exec(p, 1), Some(median(&many.whole))),
        ("a character there and back, p50 (us)", &|p| echo(p, 0), Some(median(&few.echoed))),
        ("the same with many pods (us)", &|p| echo(p, 1), Some(median(&many.echoed))),
        ("/stats/summary, p50 (ms)", &|p| median(&p.summary), None),
        ("agent CPU, a summary a second (ms)", &|p| p.summary_cpu, None),
        ("RSS, 50 followers, 50 forwards (MiB)", &|p| p.rss, None),
    ];
    println!();
    for (what, value, floor) in rows {
        print!("{what:<40}");
        peers.iter().for_each(|p| print!("{:>12} {:>9.2}", p.name, value(p)));
        println!("{}", floor.map(|f| format!("   the runtime alone {f:>9.2}")).unwrap_or_default());
    }
    let named = |name: &str| peers.iter().find(|p| p.name == name);
    let (Some(own), Some(peer)) = (named(KEELSON), named(KUBELET)) else {
        println!("missing in this run: kubelet");
        return;
    };
    let floor = median(&few.echoed);
    let verdicts = [
        ("streaming, times the kubelet's", median(&own.streamed) / median(&peer.streamed), 1.0, true),
        ("exec to its end, times the kubelet's", exec(own, 0) / exec(peer, 0), 0.7, false),
        ("the same with many pods", exec(own, 1) / exec(peer, 1), 0.7, false),
        ("exec round trip, times the kubelet's", echo(own, 0) / echo(peer, 0), 0.7, false),
        (
            "what the agent adds to the runtime's own",
            (echo(own, 0) - floor) / (echo(peer, 0) - floor),
            0.7,
            false,
        ),
        ("exec round trip with many pods", echo(own, 1) / echo(peer, 1), 0.7, false),
        ("CPU with summaries, times the kubelet's", own.summary_cpu / peer.summary_cpu, 0.3, false),
        ("RSS with 100 connected (MiB)", own.rss, 40.0, false),
    ];
    for (what, value, reach, at_least) in verdicts {
        let reached = if at_least { value >= reach } else { value <= reach };
        let verdict = if reached { "reached" } else { "MISSED" };
        println!("{what:<52} {value:>6.2} (reach {reach}): {verdict}");
    }
}
