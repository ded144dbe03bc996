//! The channel from a lease source to the daemon. The source's status is replaced as a whole; leases are sent one by one.
//! Unread leases are stored once for each holder, so the channel cannot grow without bound.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keelson_kit::cidr::IpNetwork;
use tokio::sync::Notify;

use crate::lease::{LeaseUpdate, ReportedLease};

/// What a source reports about itself and this host, apart from the peers' leases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// This host's own subnets, once it has them.
    pub subnets: Vec<IpNetwork>,
    /// Why the source is not available now, or what it waits for.
    pub problem: Option<String>,
    /// Addresses that an administrator set for this host at the source.
    pub overwrite4: Option<IpAddr>,
    pub overwrite6: Option<IpAddr>,
    /// How the network configuration differs from the one in force.
    pub reconfigured: Option<String>,
    /// Whether this comes from the source, not from the saved state.
    pub synced: bool,
}

pub fn channel() -> (SourceSender, SourceReceiver) {
    let state = Arc::new(ChannelState::default());
    (SourceSender { state: state.clone() }, SourceReceiver { state })
}

#[derive(Debug, Default)]
struct ChannelState {
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    status: SourceStatus,
    is_snapshot: bool,
    leases: BTreeMap<Arc<str>, Option<ReportedLease>>,
}

impl ChannelState {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The source's end.
#[derive(Debug)]
pub struct SourceSender {
    state: Arc<ChannelState>,
}

impl SourceSender {
    pub fn update_status(&self, change: impl FnOnce(&mut SourceStatus)) {
        let changed = {
            let mut pending = self.state.lock();
            let before = pending.status.clone();
            change(&mut pending.status);
            pending.status != before
        };
        if changed {
            self.state.changed.notify_one();
        }
    }

    /// A lease was added or changed; None: removed.
    pub fn send_lease(&self, holder: &str, reported: Option<ReportedLease>) {
        let mut pending = self.state.lock();
        match (pending.is_snapshot, reported) {
            (true, None) => drop(pending.leases.remove(holder)),
            (_, reported) => drop(pending.leases.insert(holder.into(), reported)),
        }
        drop(pending);
        self.state.changed.notify_one();
    }

    /// Replaces all leases.
    pub fn send_snapshot(&self, all: impl Iterator<Item = (Arc<str>, ReportedLease)>) {
        let mut pending = self.state.lock();
        pending.is_snapshot = true;
        pending.leases = all.map(|(holder, reported)| (holder, Some(reported))).collect();
        drop(pending);
        self.state.changed.notify_one();
    }
}

/// The reader's end.
#[derive(Debug)]
pub struct SourceReceiver {
    state: Arc<ChannelState>,
}

impl SourceReceiver {
    /// Waits until there is something to take.
    pub async fn changed(&self) {
        self.state.changed.notified().await;
    }

    pub fn take(&self) -> (SourceStatus, Option<LeaseUpdate>) {
        let mut pending = self.state.lock();
        let leases = std::mem::take(&mut pending.leases);
        let update = match (std::mem::take(&mut pending.is_snapshot), leases.is_empty()) {
            (true, _) => Some(LeaseUpdate::Snapshot(
                leases.into_iter().filter_map(|(holder, reported)| Some((holder, reported?))).collect(),
            )),
            (false, false) => Some(LeaseUpdate::Changes(leases)),
            (false, true) => None,
        };
        (pending.status.clone(), update)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Lease;

    fn lease(holder: &str, backend: &str) -> ReportedLease {
        Ok(Lease::new(holder, backend, None, None))
    }

    #[test]
    fn unread_leases_are_stored_once_for_each_holder() {
        let (sender, receiver) = channel();
        assert_eq!(receiver.take().1, None);
        sender.send_lease("a", Some(lease("a", "udp")));
        sender.send_lease("a", Some(lease("a", "vxlan")));
        sender.send_lease("b", None);
        let Some(LeaseUpdate::Changes(update)) = receiver.take().1 else { panic!("no update") };
        assert_eq!(update.len(), 2);
        assert_eq!(update["a"], Some(lease("a", "vxlan")));
        assert_eq!(receiver.take().1, None, "it is delivered once");
    }

    #[test]
    fn a_snapshot_replaces_pending_leases_and_later_changes_apply_to_it() {
        let (sender, receiver) = channel();
        sender.send_lease("z", Some(lease("z", "udp")));
        sender.send_snapshot(["a", "b"].into_iter().map(|h| (h.into(), lease(h, "udp"))));
        sender.send_lease("b", None);
        sender.send_lease("c", Some(lease("c", "udp")));
        let Some(LeaseUpdate::Snapshot(update)) = receiver.take().1 else { panic!("no update") };
        assert_eq!(update.keys().map(|k| &**k).collect::<Vec<_>>(), ["a", "c"]);
    }
}
