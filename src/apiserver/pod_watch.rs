//! The pods bound to this node, as the apiserver tells of them.

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;

use crate::client::Api;
use crate::follow::{Scope, Update, follow};

#[derive(Debug, Clone)]
pub enum PodEvent {
    /// All pods of this node, after the start and whenever the server had forgotten where we were. A pod that was
    /// known and is missing here was deleted meanwhile.
    Synced(Vec<Pod>),
    /// New or changed.
    Applied(Pod),
    Deleted(Pod),
    /// The server cannot be heard, and why. What was told last still stands; more follows when it is back.
    Disconnected(String),
}

impl Api {
    /// Follows this node's pods until dropped. Nothing is held back: an event is handed on as it arrives.
    pub fn pods(&self) -> impl Stream<Item = PodEvent> + Send + use<> {
        let node = self.node_name();
        let scope = Scope {
            what: format!("pods of node {node}"),
            path: "/api/v1/pods".to_owned(),
            field_selector: Some(format!("spec.nodeName={node}")),
            // After a restart an old answer could bring a deleted pod back to life.
            from_cache: false,
            relist_after_outage: true,
        };
        follow::<Pod>(self.clone(), scope).map(|update| match update {
            Update::Synced { items, .. } => PodEvent::Synced(items),
            Update::Applied(pod) => PodEvent::Applied(pod),
            Update::Deleted(pod) => PodEvent::Deleted(pod),
            Update::Disconnected(error) => PodEvent::Disconnected(error.to_string()),
        })
    }
}
