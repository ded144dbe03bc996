//! Asks the runtime how it is, and keeps what it answered last.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures};
use keelson_core::node::{
    NodeImage, NodeRuntime, RuntimeCondition, RuntimeState, largest_images, runtime_version,
};
use keelson_cri::status::{Condition, Handler, RuntimeStatus};
use tokio::time::Instant;

use crate::node::Node;

pub struct RuntimeMonitor {
    node: Arc<Node>,
    latest: NodeRuntime,
    /// When it last answered.
    answered_at: Option<Instant>,
    /// Whether its last question was answered. If not, it may be another version when it is back.
    answers: bool,
    version_read: bool,
    images_read: Option<Instant>,
}

impl RuntimeMonitor {
    pub fn new(node: Arc<Node>) -> Self {
        let latest = NodeRuntime { version: unknown_version(&node), ..NodeRuntime::default() };
        Self { node, latest, answered_at: None, answers: true, version_read: false, images_read: None }
    }

    pub fn latest(&self) -> &NodeRuntime {
        &self.latest
    }

    /// How long until it is to be asked again.
    pub fn heartbeat(&self) -> Duration {
        self.latest.state.heartbeat(self.answers)
    }

    /// Images were pulled or removed.
    pub fn images_changed(&mut self) {
        self.images_read = None;
    }

    /// Asks the runtime how it is. Returns whether the Node shows something else now.
    pub async fn observe(&mut self) -> bool {
        let before = self.latest.clone();
        match self.node.runtime.status().await {
            Ok(status) => self.answered(&status).await,
            Err(error) => self.unanswered(error.to_string()),
        }
        if before.state != self.latest.state {
            if self.latest.state.is_ready() {
                tracing::info!(runtime = self.latest.version, "the runtime and its network are ready");
            } else {
                tracing::warn!(state = ?self.latest.state, "the runtime is not ready");
            }
        }
        let age = self.images_read.map(|at| at.elapsed());
        if self.node.api.is_some() && self.answers && self.latest.state.wants_images(age) {
            self.read_images().await;
        }
        before != self.latest
    }

    async fn answered(&mut self, status: &RuntimeStatus) {
        self.node.reports.pulse.runtime_answered();
        self.answered_at = Some(Instant::now());
        if !std::mem::replace(&mut self.answers, true) {
            tracing::info!("the runtime answers again");
        }
        if !self.version_read {
            self.read_version().await;
        }
        self.latest.handlers = status.handlers.iter().map(handler).collect();
        // In the order of their names: a runtime that lists them in any order is no change of the Node.
        self.latest.handlers.sort_by(|a, b| a.name.cmp(&b.name));
        self.latest.features = status
            .features
            .map(|f| NodeFeatures { supplemental_groups_policy: Some(f.supplemental_groups_policy) });
        self.node.state.set_runtime_features(status);
        self.latest.state = answering(status);
        self.node.state.set_network_problem(self.latest.state.network_problem());
    }

    fn unanswered(&mut self, error: String) {
        if std::mem::replace(&mut self.answers, false) {
            tracing::warn!(error, "the runtime did not answer; asking again");
        }
        self.version_read = false;
        let silent = self.answered_at.map(|at| at.elapsed());
        self.latest.state = std::mem::take(&mut self.latest.state).unanswered(silent, error);
        if !self.latest.state.is_ready() {
            self.latest.version = unknown_version(&self.node);
        }
    }

    async fn read_version(&mut self) {
        if let Ok(v) = self.node.runtime.version().await {
            self.latest.version = runtime_version(&v.name, Some(&v.version));
            self.node.state.set_runtime(&v.name, &v.version);
            self.version_read = true;
        }
    }

    async fn read_images(&mut self) {
        if let Ok(list) = self.node.runtime.list_images().await {
            let most = self.node.settings.kubelet.node_status_max_images;
            let images = list.into_iter().map(|image| NodeImage {
                names: image.repo_digests.into_iter().chain(image.repo_tags).collect(),
                size_bytes: image.size,
            });
            // A negative number is no limit.
            self.latest.images = largest_images(images, usize::try_from(most).unwrap_or(usize::MAX));
        }
        self.images_read = Some(Instant::now());
    }
}

fn unknown_version(node: &Node) -> String {
    runtime_version(&node.state.runtime_name(), None)
}

fn answering(status: &RuntimeStatus) -> RuntimeState {
    let condition = |c: &Condition| RuntimeCondition {
        ready: c.ok,
        reason: c.reason.clone(),
        message: c.message.clone(),
    };
    RuntimeState::Answering {
        runtime: condition(&status.runtime_ready),
        network: condition(&status.network_ready),
    }
}

fn handler(h: &Handler) -> NodeRuntimeHandler {
    NodeRuntimeHandler {
        name: Some(h.name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(h.recursive_read_only_mounts),
            user_namespaces: Some(h.user_namespaces),
        }),
    }
}
