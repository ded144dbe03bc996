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
    let ctx = ctx.clone();
    tokio::task::spawn_blocking(move || gather::gather(&ctx, detail)).await.ok()
}

/// What /stats/summary answers.
pub async fn summary(ctx: &Arc<Context>, only_cpu_and_memory: bool) -> Option<Summary> {
    let detail = if only_cpu_and_memory { Detail::CpuAndMemory } else { Detail::Summary };
    let report = report(ctx, detail).await?;
    Some(summary::build(ctx, report, only_cpu_and_memory).await)
}
