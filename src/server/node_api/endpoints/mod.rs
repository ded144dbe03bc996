//! What is served, one file an endpoint. A call gets here only after both checks.

mod configz;
mod health;
mod pods;

use std::sync::Arc;

use http::{Response, StatusCode};
use keelson_agent::NodeHandle;
use keelson_core::node_api::Endpoint;

use super::answer::{Call, Endpoints};
use crate::reply::{Reply, text};

/// The endpoints of this node.
pub(super) fn of(node: NodeHandle) -> Endpoints {
    let node = Arc::new(node);
    Arc::new(move |call| {
        let node = node.clone();
        Box::pin(async move { serve(&node, call).await })
    })
}

async fn serve(node: &NodeHandle, call: Call) -> Response<Reply> {
    match &call.endpoint {
        Endpoint::Healthz(check) => health::answer(node, check.as_deref(), &call.query),
        Endpoint::Pods => pods::ordered(node),
        Endpoint::RunningPods => pods::running(node).await,
        Endpoint::Configz => configz::answer(node),
        Endpoint::ContainerLogs(_)
        | Endpoint::StatsSummary
        | Endpoint::Metrics
        | Endpoint::MetricsCadvisor
        | Endpoint::MetricsResource
        | Endpoint::MetricsProbes
        | Endpoint::Exec(_)
        | Endpoint::Attach(_)
        | Endpoint::Run(_)
        | Endpoint::PortForward(_)
        | Endpoint::Logs(_)
        | Endpoint::Checkpoint(_) => text(StatusCode::NOT_IMPLEMENTED, "not served by this version\n"),
    }
}
