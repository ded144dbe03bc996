//! Figures of the overlay's data path, beside flanneld's, the kernel's vxlan and plain routing, in one run.
//!
//! Two hosts are two network namespaces with a cable between them, each with a pod behind a bridge. Every contender has two
//! of its own; all are set up at once and take turns, round by round, so that whatever else the machine does hits all alike.

mod contender;
mod daemon;
mod report;
mod traffic;
mod world;

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::error::Error;
use std::process::ExitCode;

use contender::Contender;
use report::Figures;

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-overlay: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A number from the environment, for a quicker or a longer run.
fn setting(name: &str, usual: f64) -> f64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(usual)
}

fn measure() -> Result<(), Box<dyn Error>> {
    if !std::process::Command::new("unshare").args(["--net", "true"]).status()?.success() {
        return Err("it takes network namespaces: run as root".into());
    }
    if std::fs::metadata(rig::TUN).is_err() {
        return Err(format!("this machine has no {}: modprobe tun", rig::TUN).into());
    }
    let rounds = setting("BENCH_ROUNDS", 3.0) as u32;
    let seconds = setting("BENCH_SECONDS", 2.0);
    // BENCH_ONLY="keelson udp" leaves the others out, for trying something quickly.
    let only = std::env::var("BENCH_ONLY").ok();
    let contenders = Contender::all(|name| only.as_deref().is_none_or(|only| only == name))?;
    let mut figures = Figures::default();
    for _ in 0..rounds {
        for contender in &contenders {
            figures.add(contender.name, "TCP, one stream", traffic::streams(&contender.world, 1, seconds)?);
            figures.add(
                contender.name,
                "TCP, eight streams",
                traffic::streams(&contender.world, 8, seconds)?,
            );
            figures.add_rate(contender.name, traffic::datagrams(&contender.world, seconds)?);
            figures.add_ping(contender.name, traffic::ping(&contender.world)?);
            figures.set_memory(contender.name, contender.memory());
        }
    }
    figures.print(&contenders.iter().map(|c| c.name).collect::<Vec<_>>());
    Ok(())
}
