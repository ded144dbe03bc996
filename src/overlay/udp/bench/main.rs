//! Figures of the overlay's data path, beside flanneld's, the kernel's vxlan and plain routing, in one run.
//!
//! Two hosts are two network namespaces with a cable between them, each with a pod behind a bridge. All contenders are set
//! up at once and take turns, round by round, so that whatever else the machine does hits all alike.

mod carry;
mod contender;
mod report;
mod traffic;
mod world;

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::error::Error;
use std::process::ExitCode;

use contender::Contender;
use report::Figures;
use world::World;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome =
        match words.split_first() {
            None => measure(),
            Some((word, rest)) if word == "carry" => carry::run(rest),
            _ => Err("usage: bench-overlay, which measures, or what it runs itself: bench-overlay carry ..."
                .into()),
        };
    match outcome {
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
    if let Some(why) = rig::obstacle() {
        println!("left out: {why}");
        return Ok(());
    }
    let rounds = setting("BENCH_ROUNDS", 3.0) as u32;
    let seconds = setting("BENCH_SECONDS", 2.0);
    let world = World::new()?;
    // BENCH_ONLY="keelson udp" leaves the others out, for trying something quickly.
    let only = std::env::var("BENCH_ONLY").ok();
    let mut contenders = Contender::all(&world)?;
    contenders.retain(|contender| only.as_deref().is_none_or(|only| only == contender.name));
    let mut figures = Figures::default();
    for _ in 0..rounds {
        for contender in &contenders {
            contender.take_over(&world)?;
            figures.add(contender.name, "TCP, one stream", traffic::streams(&world, 1, seconds)?);
            figures.add(contender.name, "TCP, eight streams", traffic::streams(&world, 8, seconds)?);
            figures.add_rate(contender.name, traffic::datagrams(&world, seconds)?);
            figures.add_ping(contender.name, traffic::ping(&world)?);
            figures.set_memory(contender.name, contender.memory());
        }
    }
    figures.print(&contenders.iter().map(|c| c.name).collect::<Vec<_>>());
    Ok(())
}
