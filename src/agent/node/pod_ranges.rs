//! Tells the runtime from which ranges its pods' addresses are, as soon as somebody assigned them to the Node. Runtimes that
//! write their network configuration themselves wait for it.

use std::sync::Arc;
use std::time::Duration;

use keelson_kit::backoff::{Backoff, Policy};

use crate::node::Node;

const RETRY: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(30));

pub async fn follow(node: Arc<Node>) {
    let mut object = node.state.follow_object();
    let mut told = String::new();
    loop {
        let ranges = object.borrow_and_update().pod_ranges().join(",");
        if !ranges.is_empty() && ranges != told {
            told = tell(&node, ranges).await;
        }
        // The sender lives as long as the node.
        if object.changed().await.is_err() {
            return;
        }
    }
}

/// Until the runtime has taken them. What changes meanwhile is told next.
async fn tell(node: &Node, ranges: String) -> String {
    let mut backoff = Backoff::default();
    loop {
        match node.runtime.update_pod_cidr(&ranges).await {
            Ok(()) => {
                tracing::info!(ranges, "the runtime was told the ranges of pods' addresses");
                return ranges;
            }
            Err(error) => {
                let pause = backoff.fail(RETRY);
                tracing::warn!(%error, ranges, retry_in = ?pause, "the runtime was not told the ranges of pods' addresses");
                tokio::time::sleep(pause).await;
            }
        }
    }
}
