//! Follows this node's object at the apiserver: labels, taints, addresses, ranges of pods, and its deletion.

use std::sync::Arc;

use futures::StreamExt as _;
use keelson_apiserver::Update;

use crate::node::Node;

pub async fn follow(node: Arc<Node>) {
    let Some(parts) = &node.api else { return std::future::pending().await };
    let mut updates = std::pin::pin!(parts.api.own_node());
    while let Some(update) = updates.next().await {
        node.state.update_object(|object| match update {
            Update::Synced { mut items, version } => object.listed(items.pop(), &version),
            Update::Applied(found) => object.seen(found),
            Update::Deleted(gone) => object.deleted(&gone),
            Update::Disconnected(error) => {
                tracing::debug!(%error, "going on with the node object as it was known");
                object.interrupted();
                false
            }
        });
    }
}
