//! Figures: how quickly pods start and stop, one at a time and many at once, and what the agent itself costs.
//!
//! A figure counts as a ratio to a peer in the same run: the runtime's own floor, which is the same CRI calls made
//! directly, and a real kubelet. The three take turns, pod by pod, so that whatever else the machine does hits all alike.

mod api;
mod contender;
mod exec;
mod floor;
mod picture;
mod report;
mod usage;
mod watch;
mod websocket;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use keelson_tests::agent::Agent;
use keelson_tests::built;
use keelson_tests::cluster::Cluster;
use keelson_tests::containerd::{Containerd, Kind};
use keelson_tests::control_plane::Extent;
use keelson_tests::parts::{CONTROL_PLANE, Part};
use keelson_tests::schedule;
use keelson_tests::suite::{Definition, Suite, folder};
use serde_json::json;

use contender::Contender;
use floor::Floor;
use report::Figures;
use watch::Watch;

const NEEDS: &[&[Part]] = &[&CONTROL_PLANE, &[Part::Containerd2, Part::CniReference]];

const BENCH: &[Definition] = &[
    Definition { name: "bench", needs: NEEDS, wants: &[Part::Kubelet], body: |s| Box::pin(body(s)) },
    Definition { name: "node_api", needs: NEEDS, wants: &[Part::Kubelet], body: |s| Box::pin(api::body(s)) },
];

/// One after the other: two that measure at once measure each other.
fn main() -> ExitCode {
    schedule::main_with(BENCH, 1)
}

/// A number from the environment, for a quicker or a longer run.
fn setting(name: &str, usual: u32) -> u32 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(usual)
}

async fn body(suite: &mut Suite) -> Result<()> {
    let rounds = setting("BENCH_ROUNDS", 40);
    let many = setting("BENCH_PODS", 100);
    let idle = Duration::from_secs(setting("BENCH_IDLE", 30).into());
    let dir = suite.dir().to_owned();
    println!("starting a control plane and a runtime for each contender");
    let cluster = Cluster::start(&dir, Extent::WithoutScheduler).await?;
    let watch = Watch::start(&cluster).await?;

    let floor_dir = folder(&dir, "floor")?;
    let floor = Floor::new(Containerd::start(Kind::V2, &floor_dir, 1).await?).await?;
    let mut contenders = vec![keelson(&cluster, &dir).await?];
    match kubelet(&cluster, &dir).await {
        Ok(kubelet) => contenders.push(kubelet),
        Err(e) => println!("without a kubelet: {e:#}"),
    }

    let mut figures = Figures::default();
    println!("one at a time, {rounds} rounds");
    for round in 0..rounds {
        figures.add_floor(floor.one(&format!("one-{round}")).await?);
        for contender in &mut contenders {
            let took = contender.one(&cluster, &watch, &format!("{}-one-{round}", contender.name)).await?;
            figures.add(contender.name, took);
        }
    }
    for contender in &contenders {
        figures.set_cpu_per_pod(contender.name, contender.cpu_per_pod());
    }
    println!("\n{}", report::table(&figures, many));
    for count in [many / 10, many] {
        println!("{count} at once");
        figures.set_floor_many(count, floor.many(count).await?);
        for contender in &mut contenders {
            let many = contender.many(&cluster, &watch, count, idle).await?;
            figures.set_many(contender.name, count, many);
        }
    }
    println!("\n{}", report::table(&figures, many));
    let picture = built::bench_dir().join("pods.svg");
    std::fs::create_dir_all(built::bench_dir()).context("no directory for the picture")?;
    std::fs::write(&picture, picture::svg(&figures, many))?;
    println!("picture: {}", picture.canonicalize()?.display());
    Ok(())
}

async fn keelson(cluster: &Cluster, dir: &std::path::Path) -> Result<Contender> {
    let dir = folder(dir, "keelson")?;
    let containerd = Containerd::start(Kind::V2, &dir, 2).await?;
    let options = cluster.options("keelson", &containerd, json!({}))?;
    let agent = Agent::start_keelson(&built::release_agent()?, &dir, options).await?;
    cluster.wait_node_ready("keelson", true, Duration::from_secs(60)).await?;
    Ok(Contender::new("keelson", agent, containerd))
}

async fn kubelet(cluster: &Cluster, dir: &std::path::Path) -> Result<Contender> {
    let dir = folder(dir, "kubelet")?;
    let containerd = Containerd::start(Kind::V2, &dir, 3).await?;
    let options = cluster.options("kubelet", &containerd, json!({}))?;
    let agent = Agent::start_program(&Part::Kubelet.program()?, &dir, options).await?;
    cluster.wait_node_ready("kubelet", true, Duration::from_secs(60)).await?;
    Ok(Contender::new("kubelet", agent, containerd))
}
