//! How a source tells what it knows: what concerns this host as a whole, the latest replacing the one before, and leases
//! one by one. What has not been read yet is kept once for each holder, so nothing can fall behind.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keelson_netkit::IpNet;
use tokio::sync::Notify;

use crate::lease::{Heard, News};

/// What a source knows beside the leases of others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// This host's own subnets, once it has them.
    pub subnets: Vec<IpNet>,
    /// Why the source cannot be heard just now, or what it waits for.
    pub trouble: Option<String>,
    /// Addresses that an administrator set for this host at the source.
    pub overwrite4: Option<IpAddr>,
    pub overwrite6: Option<IpAddr>,
    /// The network configuration is another now than when this process started.
    pub reconfigured: Option<String>,
    /// Whether this was heard from the source, rather than remembered.
    pub heard: bool,
}

pub fn mailbox() -> (Outbox, Inbox) {
    let shared = Arc::new(Shared::default());
    (Outbox { shared: shared.clone() }, Inbox { shared })
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    view: View,
    whole: bool,
    leases: BTreeMap<Arc<str>, Option<Heard>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The source's end.
#[derive(Debug)]
pub struct Outbox {
    shared: Arc<Shared>,
}

impl Outbox {
    pub fn tell(&self, change: impl FnOnce(&mut View)) {
        let changed = {
            let mut pending = self.shared.lock();
            let before = pending.view.clone();
            change(&mut pending.view);
            pending.view != before
        };
        if changed {
            self.shared.bell.notify_one();
        }
    }

    /// A lease came, changed, or is gone.
    pub fn lease(&self, holder: &str, heard: Option<Heard>) {
        let mut pending = self.shared.lock();
        match (pending.whole, heard) {
            (true, None) => drop(pending.leases.remove(holder)),
            (_, heard) => drop(pending.leases.insert(holder.into(), heard)),
        }
        drop(pending);
        self.shared.bell.notify_one();
    }

    /// These are all the leases there are.
    pub fn leases(&self, all: impl Iterator<Item = (Arc<str>, Heard)>) {
        let mut pending = self.shared.lock();
        pending.whole = true;
        pending.leases = all.map(|(holder, heard)| (holder, Some(heard))).collect();
        drop(pending);
        self.shared.bell.notify_one();
    }
}

/// The reader's end.
#[derive(Debug)]
pub struct Inbox {
    shared: Arc<Shared>,
}

impl Inbox {
    /// Returns when there is something to take, or was since this was last asked.
    pub async fn changed(&self) {
        self.shared.bell.notified().await;
    }

    pub fn take(&self) -> (View, Option<News>) {
        let mut pending = self.shared.lock();
        let leases = std::mem::take(&mut pending.leases);
        let news = match (std::mem::take(&mut pending.whole), leases.is_empty()) {
            (true, _) => Some(News::Whole(
                leases.into_iter().filter_map(|(holder, heard)| Some((holder, heard?))).collect(),
            )),
            (false, false) => Some(News::Some(leases)),
            (false, true) => None,
        };
        (pending.view.clone(), news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Lease;

    fn lease(holder: &str, backend: &str) -> Heard {
        Ok(Lease::new(holder, backend, None, None))
    }

    #[test]
    fn what_is_not_read_is_kept_once_for_each_holder() {
        let (outbox, inbox) = mailbox();
        assert_eq!(inbox.take().1, None);
        outbox.lease("a", Some(lease("a", "udp")));
        outbox.lease("a", Some(lease("a", "vxlan")));
        outbox.lease("b", None);
        let Some(News::Some(news)) = inbox.take().1 else { panic!("no news") };
        assert_eq!(news.len(), 2);
        assert_eq!(news["a"], Some(lease("a", "vxlan")));
        assert_eq!(inbox.take().1, None, "it is told once");
    }

    #[test]
    fn a_whole_list_goes_before_what_was_told_and_what_follows_changes_it() {
        let (outbox, inbox) = mailbox();
        outbox.lease("z", Some(lease("z", "udp")));
        outbox.leases(["a", "b"].into_iter().map(|h| (h.into(), lease(h, "udp"))));
        outbox.lease("b", None);
        outbox.lease("c", Some(lease("c", "udp")));
        let Some(News::Whole(news)) = inbox.take().1 else { panic!("no news") };
        assert_eq!(news.keys().map(|k| &**k).collect::<Vec<_>>(), ["a", "c"]);
    }
}
