//! The state that the engine, the prober and the status report share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::network::Network;
use crate::probe_results::ProbeResults;

/// The engine writes `network`, the prober writes `results`, and the status is built from both. Lock `results` first.
pub struct SharedState {
    network: Mutex<Network>,
    results: Mutex<ProbeResults>,
    changed: watch::Sender<()>,
}

impl SharedState {
    pub fn new() -> Arc<Self> {
        Arc::new(SharedState {
            network: Mutex::default(),
            results: Mutex::default(),
            changed: watch::channel(()).0,
        })
    }

    /// Never held across I/O or an await.
    pub fn network(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn results(&self) -> MutexGuard<'_, ProbeResults> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the subscribers.
    pub fn notify_changed(&self) {
        self.changed.send_replace(());
    }

    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub fn is_ready(&self) -> bool {
        self.network().summary.ready
    }

    /// One line for a condition: the first problem and the number of others. Does not iterate over all peers.
    pub fn problem_summary(&self) -> Option<String> {
        let results = self.results();
        let network = self.network();
        let peer = |holder: &Arc<str>| {
            let problems = network.problems(&results, &network.leases.peer(holder)?);
            problems.into_iter().next()
        };
        let of_peers = || network.unreachable.iter().chain(results.troubled()).find_map(peer);
        let first = network.summary.problems.first().cloned();
        let first =
            first.or_else(|| network.leases.rejections().next().map(str::to_owned)).or_else(of_peers)?;
        let count = network.summary.problems.len()
            + network.leases.rejected_count()
            + network.unreachable.len()
            + results.troubled().len();
        Some(match count {
            0 | 1 => first,
            more => format!("{first} (and {} more)", more - 1),
        })
    }
}
