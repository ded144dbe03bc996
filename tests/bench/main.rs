//! Figures: how quickly pods start and stop, one at a time and many at once, and what the agent itself costs.
//!
//! A figure counts as a ratio to a peer in the same run: the runtime's own floor, which is the same CRI calls made
//! directly, a real kubelet, and an earlier build if BENCH_BESIDE names the directory of its programs. They take turns, pod
//! by pod, so that whatever else the machine does hits all alike.

mod api;
mod contender;
mod exec;
mod floor;
mod picture;
mod report;
mod usage;
mod watch;
mod websocket;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use keelson_tests::agent::{Agent, Options};
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

pub const KEELSON: &str = "keelson";
pub const EARLIER: &str = "earlier";
pub const KUBELET: &str = "kubelet";

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
    let mut contenders = join_all(&cluster, &dir).await?;

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

/// Those whose agent can be had, each on a runtime of its own. The network plugins are the same for all.
async fn join_all(cluster: &Cluster, dir: &Path) -> Result<Vec<Contender>> {
    let mut contenders = Vec::new();
    for ((name, program), number) in agents()?.into_iter().zip(2..) {
        let dir = folder(dir, name)?;
        let containerd = Containerd::start(Kind::V2, &dir, number).await?;
        let options = cluster.options(name, &containerd, json!({}))?;
        let agent = start(name, &program, &dir, options).await?;
        cluster.wait_node_ready(name, true, Duration::from_secs(60)).await?;
        contenders.push(Contender::new(name, agent, containerd));
    }
    Ok(contenders)
}

/// The agents that are measured, by name.
fn agents() -> Result<Vec<(&'static str, PathBuf)>> {
    let mut agents = vec![(KEELSON, built::release_agent()?)];
    agents.extend(built::earlier("keelson")?.map(|program| (EARLIER, program)));
    match Part::Kubelet.program() {
        Ok(program) => agents.push((KUBELET, program)),
        Err(e) => println!("without a kubelet: {e:#}"),
    }
    Ok(agents)
}

async fn start(name: &str, program: &Path, dir: &Path, options: Options) -> Result<Agent> {
    match name {
        KUBELET => Agent::start_program(program, dir, options).await,
        _ => Agent::start_keelson(program, dir, options).await,
    }
}
