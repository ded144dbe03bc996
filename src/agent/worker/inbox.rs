//! Everything that a worker waits for: orders, the runtime, its probes, changed objects, the time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use keelson_apiserver::{ObjectKey, TrustBundleCache, TrustBundleNews};
use keelson_core::pod::Order;
use tokio::sync::{Notify, broadcast, watch};

use crate::node::ApiParts;

pub(super) struct Inbox {
    orders: watch::Receiver<Order>,
    /// Rung when something happened to the pod in the runtime.
    runtime: Arc<Notify>,
    probes: Arc<Notify>,
    /// Changes of every ConfigMap and Secret that some pod of this node refers to; `None` on a node that stands alone.
    objects: Option<broadcast::Receiver<ObjectKey>>,
    /// What this pod refers to.
    refs: BTreeSet<ObjectKey>,
    /// Of a pod that shows trust bundles of the cluster.
    trust_bundles: Option<TrustBundleNews>,
    all_trust_bundles: Option<TrustBundleCache>,
}

/// What ended a wait.
pub(super) enum Wake {
    Order,
    Runtime,
    Probes,
    /// Something that the pod refers to has changed. `None`: some changes were missed, and ours may be among them.
    Object(Option<ObjectKey>),
    TrustBundles,
    Time,
    /// Nobody gives orders any more: the agent is stopping.
    Closed,
}

impl Inbox {
    pub fn new(orders: watch::Receiver<Order>, runtime: Arc<Notify>, api: Option<&ApiParts>) -> Self {
        let objects = api.map(|a| a.objects.changed());
        Self {
            orders,
            runtime,
            probes: Arc::default(),
            objects,
            refs: BTreeSet::new(),
            trust_bundles: None,
            all_trust_bundles: api.map(|a| a.trust_bundles.clone()),
        }
    }

    /// Rung by the prober when a verdict changes.
    pub fn probe_bell(&self) -> Arc<Notify> {
        self.probes.clone()
    }

    pub fn latest_order(&mut self) -> Order {
        self.orders.borrow_and_update().clone()
    }

    /// The same orders, for somebody who watches them while an action goes on.
    pub fn orders(&self) -> watch::Receiver<Order> {
        self.orders.clone()
    }

    /// From now on, changes of these objects wake the worker, and those of trust bundles if it shows any.
    pub fn follow(&mut self, refs: BTreeSet<ObjectKey>, trust_bundles: bool) {
        self.refs = refs;
        // What was reported until now is what the volumes are made of next.
        self.trust_bundles = self.all_trust_bundles.as_ref().filter(|_| trust_bundles).map(|all| all.news());
    }

    /// Listens while an action goes on. The runtime's bell rings again afterwards: what was learned meanwhile is not kept.
    pub fn listen(&self) -> Listening<'_> {
        Listening { inbox: self, rung: false }
    }

    pub async fn wait(&mut self, until: Option<Timestamp>) -> Wake {
        let pause =
            until.map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default());
        tokio::select! {
            order = self.orders.changed() => if order.is_ok() { Wake::Order } else { Wake::Closed },
            () = self.runtime.notified() => Wake::Runtime,
            () = self.probes.notified() => Wake::Probes,
            object = changed(&mut self.objects, &self.refs) => Wake::Object(object),
            () = news(&mut self.trust_bundles) => Wake::TrustBundles,
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => Wake::Time,
        }
    }
}

/// What may change a status without the worker's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    Runtime,
    Probes,
}

pub(super) struct Listening<'a> {
    inbox: &'a Inbox,
    rung: bool,
}

impl Listening<'_> {
    pub async fn next(&mut self) -> News {
        tokio::select! {
            () = self.inbox.runtime.notified() => {
                self.rung = true;
                News::Runtime
            }
            () = self.inbox.probes.notified() => News::Probes,
        }
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        if self.rung {
            self.inbox.runtime.notify_one();
        }
    }
}

async fn news(trust_bundles: &mut Option<TrustBundleNews>) {
    match trust_bundles {
        Some(news) => news.changed().await,
        None => std::future::pending().await,
    }
}

/// Resolves when something changed that the pod refers to.
async fn changed(
    objects: &mut Option<broadcast::Receiver<ObjectKey>>,
    refs: &BTreeSet<ObjectKey>,
) -> Option<ObjectKey> {
    let Some(objects) = objects else { return std::future::pending().await };
    loop {
        match objects.recv().await {
            Ok(key) if refs.contains(&key) => return Some(key),
            Ok(_) => {}
            Err(broadcast::error::RecvError::Lagged(_)) => return None,
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}
