//! Measures the node and what runs on it, when somebody asks. Containers are those that the pod workers know; what they
//! use is read from their cgroups.

mod gather;
mod summary;
mod volumes;

use std::sync::{Arc, Mutex};

use keelson_core::stats::Rates;
use keelson_core::stats::report::Report;
use keelson_core::stats::summary::Summary;
use keelson_host::cgroup::Detail;

use self::summary::Told;
use crate::context::Context;

/// What is kept between two questions: samples to compare with, and sizes that cost much to find out.
#[derive(Default)]
pub struct Memory {
    rates: Mutex<Rates>,
    volumes: volumes::Sizes,
    /// One question at a time: a crowd of scrapers waits instead of multiplying the work.
    turn: tokio::sync::Mutex<()>,
}

/// One look at everything.
pub async fn report(ctx: &Arc<Context>, detail: Detail) -> Option<Report> {
    let _turn = ctx.stats.turn.lock().await;
    look(ctx, detail).await
}

/// What /stats/summary answers.
pub async fn summary(ctx: &Arc<Context>, only_cpu_and_memory: bool) -> Option<Summary> {
    let turn = ctx.stats.turn.lock().await;
    let (report, told) = if only_cpu_and_memory {
        (look(ctx, Detail::CpuAndMemory).await, Told::default())
    } else {
        // The runtime takes its time, which is enough to look at everything else.
        futures::join!(look(ctx, Detail::Summary), summary::ask(ctx))
    };
    drop(turn);
    Some(summary::build(ctx, report?, told, only_cpu_and_memory).await)
}

async fn look(ctx: &Arc<Context>, detail: Detail) -> Option<Report> {
    let ctx = ctx.clone();
    tokio::task::spawn_blocking(move || gather::gather(&ctx, detail)).await.ok()
}
