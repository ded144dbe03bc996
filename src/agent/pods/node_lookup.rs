//! Asks the apiserver for this node's object before a pod is refused for what it says. Beside the pod loop, which must not
//! wait for an answer: a pod that is asked for waits alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use keelson_core::ids::PodUid;
use keelson_kit::backoff::{Backoff, Policy};
use tokio::task::JoinSet;

use crate::node::Node;

/// While the apiserver is away nobody can say whether a pod belongs here. Refusing it would be for good.
const RETRY: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(30));

pub struct NodeLookup {
    node: Arc<Node>,
    /// One question at a time, for all that waited when it was put.
    asking: JoinSet<()>,
    asked_for: BTreeSet<PodUid>,
    /// Came up since. What is being answered may be older than they are.
    next: BTreeSet<PodUid>,
}

impl NodeLookup {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, asking: JoinSet::new(), asked_for: BTreeSet::new(), next: BTreeSet::new() }
    }

    /// A pod is to be judged by the object as it is now.
    pub fn want(&mut self, uid: PodUid) {
        if !self.asked_for.contains(&uid) {
            self.next.insert(uid);
            self.ask();
        }
    }

    /// The pods that can be judged now. Pending for ever while none waits.
    pub async fn answered(&mut self) -> BTreeSet<PodUid> {
        if self.asking.join_next().await.is_none() {
            return std::future::pending().await;
        }
        let answered = std::mem::take(&mut self.asked_for);
        self.ask();
        answered
    }

    fn ask(&mut self) {
        if self.asking.is_empty() && !self.next.is_empty() {
            self.asked_for = std::mem::take(&mut self.next);
            self.asking.spawn(ask(self.node.clone()));
        }
    }
}

async fn ask(node: Arc<Node>) {
    let Some(parts) = &node.api else { return };
    let mut backoff = Backoff::default();
    loop {
        match parts.api.get_node().await {
            Ok(Some(found)) => {
                node.state.update_object(|object| object.seen(found));
                return;
            }
            Ok(None) => {
                node.state.update_object(|object| object.missing());
                return;
            }
            Err(error) => {
                let pause = backoff.fail(RETRY);
                tracing::warn!(%error, retry_in = ?pause, "pods wait to be admitted until the node object can be read");
                tokio::time::sleep(pause).await;
            }
        }
    }
}
