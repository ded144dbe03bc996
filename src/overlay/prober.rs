//! Probes the peers at a steady rate, stores the results, and answers other hosts' probes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keelson_kit::cidr::IpNetwork;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::config::{Backend, NetConf};
use crate::probe::{self, ProbeResult, ProbeTarget, Schedule};
use crate::shared_state::SharedState;

/// The daemon's handle on the probing task.
pub struct PeerProber {
    changed: Arc<Notify>,
    answering: Vec<(IpAddr, JoinHandle<()>)>,
    /// Whether the backend has a tunnel that probes come through.
    tunnels: bool,
}

impl PeerProber {
    /// Starts probing; with None no peer is probed, but probes of other hosts are answered.
    pub fn start(conf: &NetConf, every: Option<Duration>, shared: &Arc<SharedState>) -> Self {
        let (may_fall_back, port) = match &conf.backend {
            Backend::Vxlan(vxlan) => (vxlan.fallback_port.is_some(), Some(vxlan.port)),
            Backend::Udp { port } => (false, Some(*port)),
            _ => (false, None),
        };
        {
            let mut results = shared.results();
            (results.may_fall_back, results.port) = (may_fall_back, port);
        }
        let changed = Arc::new(Notify::new());
        if let Some(every) = every {
            tokio::spawn(run(every, shared.clone(), changed.clone()));
        }
        PeerProber { changed, answering: Vec::new(), tunnels: port.is_some() }
    }

    /// Waits until probe results change how packets should travel.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Answers probes on these addresses from now on.
    pub fn answer_on(&mut self, own: &[IpNetwork], networks: &[IpNetwork]) {
        let own: Vec<IpAddr> = own.iter().map(|net| net.ip()).filter(|_| self.tunnels).collect();
        self.answering.retain(|(addr, task)| {
            let keep = own.contains(addr) && !task.is_finished();
            if !keep {
                task.abort();
            }
            keep
        });
        for addr in own {
            if !self.answering.iter().any(|(a, _)| *a == addr) {
                let networks = networks.to_vec();
                let task = tokio::spawn(async move {
                    if let Err(error) = probe::answer(addr, networks).await {
                        tracing::debug!(%addr, %error, "cannot answer probes");
                    }
                });
                self.answering.push((addr, task));
            }
        }
    }
}

async fn run(every: Duration, shared: Arc<SharedState>, changed: Arc<Notify>) {
    let mut schedule: Schedule<Arc<str>> = Schedule::new(every);
    loop {
        let (batch, next) =
            schedule.next(Instant::now(), |after, room| shared.network().leases.after(after, room));
        let targets: Vec<ProbeTarget> = {
            let network = shared.network();
            batch.iter().flat_map(|holder| network.targets(holder)).collect()
        };
        if !targets.is_empty() {
            let swept =
                tokio::task::spawn_blocking(move || probe::sweep(&targets).map(|e| (targets, e))).await;
            match swept {
                Ok(Ok((targets, result))) => add_results(&shared, &mut schedule, &changed, &targets, result),
                Ok(Err(error)) => tracing::warn!(%error, "overlay"),
                Err(_) => return,
            }
        }
        tokio::time::sleep_until(next.into()).await;
    }
}

fn add_results(
    shared: &SharedState,
    schedule: &mut Schedule<Arc<str>>,
    changed: &Notify,
    targets: &[ProbeTarget],
    result: Vec<ProbeResult>,
) {
    let now = Instant::now();
    let mut results = shared.results();
    let before = (results.decisions(), results.troubled().len());
    for (target, result) in targets.iter().zip(result) {
        // A peer that left meanwhile has no results.
        if shared.network().leases.peer(&target.holder).is_none() {
            continue;
        }
        if !results.add(target, result) {
            schedule.retry_soon(target.holder.clone(), now);
        }
    }
    let after = (results.decisions(), results.troubled().len());
    drop(results);
    if before.0 != after.0 {
        changed.notify_one();
    }
    if before.1 != after.1 {
        shared.notify_changed();
    }
}
