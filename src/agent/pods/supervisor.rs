//! Keeps one worker for each pod and hands it the latest order. A worker that hangs in the runtime hangs alone.

use std::collections::HashMap;
use std::sync::Arc;

use keelson_core::desired::PodSource;
use keelson_core::ids::PodUid;
use keelson_core::observed::ObservedPod;
use keelson_core::pod::Order;
use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinSet};
use tracing::Instrument;

use crate::node::Node;
use crate::pods::record;
use crate::worker::{Ended, Worker};

pub struct Supervisor {
    node: Arc<Node>,
    workers: HashMap<PodUid, Handle>,
    tasks: JoinSet<Ended>,
    uids: HashMap<Id, PodUid>,
    /// Static pods whose manifest was edited: the new one starts when the old one is gone, since both carry one name.
    queued: HashMap<FullName, (PodUid, Order)>,
}

type FullName = (String, String);

struct Handle {
    orders: watch::Sender<Order>,
    bell: Arc<Notify>,
    name: FullName,
    is_static: bool,
}

impl Supervisor {
    pub fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            workers: HashMap::new(),
            tasks: JoinSet::new(),
            uids: HashMap::new(),
            queued: HashMap::new(),
        }
    }

    pub fn has(&self, uid: &PodUid) -> bool {
        self.workers.contains_key(uid)
    }

    pub fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.workers.keys()
    }

    /// The latest order for a pod; starts its worker if there is none. `found` is what the runtime holds of it.
    pub fn order(&mut self, uid: &PodUid, order: Order, found: Option<ObservedPod>) {
        if let Some(handle) = self.workers.get(uid) {
            handle.orders.send_replace(order);
            return;
        }
        let is_static = order.desired.as_ref().is_some_and(|d| d.source == PodSource::Static);
        self.start(uid, order, found, is_static);
    }

    /// Takes down what an earlier agent has left of a static pod. A new revision of it waits for that.
    pub fn retire(&mut self, uid: &PodUid, left: ObservedPod) {
        if !self.has(uid) {
            self.start(uid, Order::vanished(), Some(left), true);
        }
    }

    fn start(&mut self, uid: &PodUid, order: Order, found: Option<ObservedPod>, is_static: bool) {
        let name = match (&order.desired, &found) {
            (Some(d), _) => (d.namespace().to_owned(), d.name().to_owned()),
            (None, Some(o)) => (o.namespace.clone(), o.name.clone()),
            (None, None) => Default::default(),
        };
        let wanted = order.desired.is_some();
        if wanted && is_static && self.workers.values().any(|h| h.is_static && h.name == name) {
            tracing::info!(namespace = name.0, pod = name.1, %uid, "new revision of a static pod waits for the old one to stop");
            record::waits_for_predecessor(&self.node, uid);
            self.queued.insert(name, (uid.clone(), order));
            return;
        }
        let (sender, receiver) = watch::channel(order);
        let bell = Arc::new(Notify::new());
        let span = tracing::info_span!("pod", namespace = name.0, pod = name.1, %uid);
        let worker = Worker::new(self.node.clone(), uid.clone(), receiver, bell.clone(), found);
        let task = self.tasks.spawn(worker.run().instrument(span));
        self.uids.insert(task.id(), uid.clone());
        self.workers.insert(uid.clone(), Handle { orders: sender, bell, name, is_static });
    }

    /// A queued revision that its source has given up again never starts.
    pub fn unqueue(&mut self, uid: &PodUid) {
        self.queued.retain(|_, (queued, _)| queued != uid);
    }

    /// Is a static pod of this name still here, in whatever revision?
    pub fn runs_static(&self, namespace: &str, name: &str) -> bool {
        self.workers.values().any(|h| h.is_static && h.name.0 == namespace && h.name.1 == name)
    }

    /// Something happened to a pod in the runtime. `false` if that pod has no worker.
    pub fn ring(&self, uid: &PodUid) -> bool {
        let handle = self.workers.get(uid);
        if let Some(handle) = handle {
            handle.bell.notify_one();
        }
        handle.is_some()
    }

    pub fn ring_all(&self) {
        self.workers.values().for_each(|h| h.bell.notify_one());
    }

    /// The next worker that ended, with its pod gone from this node. Pending forever while there is none.
    pub async fn ended(&mut self) -> PodUid {
        loop {
            let (id, result) = match self.tasks.join_next_with_id().await {
                Some(Ok((id, ended))) => (id, Ok(ended)),
                Some(Err(e)) => (e.id(), Err(e)),
                None => std::future::pending().await,
            };
            let Some(uid) = self.uids.remove(&id) else { continue };
            let handle = self.workers.remove(&uid);
            if let Err(e) = result {
                tracing::error!(%uid, error = %e, "a pod's worker ended abnormally; it is started again with the next change");
            }
            if let Some(handle) = handle
                && let Some((next, order)) = self.queued.remove(&handle.name)
            {
                self.order(&next, order, None);
            }
            return uid;
        }
    }
}
