//! The pods bound to this node.

use futures::Stream;
use k8s_openapi::api::core::v1::Pod;

use crate::client::Api;
use crate::watch::{Scope, Update};

impl Api {
    /// Follows this node's pods until dropped.
    pub fn pods(&self) -> impl Stream<Item = Update<Pod>> + Send + use<> {
        let node = self.node_name();
        // Not from the cache: after a restart an old answer could bring a deleted pod back to life.
        let scope = Scope::new(format!("pods of node {node}"), "/api/v1/pods");
        self.follow(scope.with_fields(format!("spec.nodeName={node}")))
    }
}
