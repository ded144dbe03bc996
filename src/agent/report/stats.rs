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

use self::summary::RuntimeMeasures;
use crate::node::Node;

/// What is kept between two questions: samples to compare with.
#[derive(Default)]
pub struct StatsMemory {
    rates: Mutex<Rates>,
    /// One question at a time: a crowd of scrapers waits instead of multiplying the work.
    turn: tokio::sync::Mutex<()>,
}

/// Measures everything.
pub async fn report(node: &Arc<Node>, detail: Detail) -> Option<Report> {
    let _turn = node.reports.stats.turn.lock().await;
    measure(node, detail).await
}

/// What /stats/summary answers.
pub async fn summary(node: &Arc<Node>, only_cpu_and_memory: bool) -> Option<Summary> {
    let turn = node.reports.stats.turn.lock().await;
    let (report, measures) = if only_cpu_and_memory {
        (measure(node, Detail::CpuAndMemory).await, RuntimeMeasures::default())
    } else {
        // The runtime takes its time, which is enough to measure everything else.
        futures::join!(measure(node, Detail::Summary), summary::ask(node))
    };
    drop(turn);
    Some(summary::build(node, report?, measures, only_cpu_and_memory).await)
}

async fn measure(node: &Arc<Node>, detail: Detail) -> Option<Report> {
    let node = node.clone();
    tokio::task::spawn_blocking(move || gather::gather(&node, detail)).await.ok()
}
