//! What is served, one file an endpoint. A call gets here only after both checks.

mod checkpoint;
mod configz;
mod container_logs;
mod exec;
mod health;
mod lookup;
mod metrics;
mod pods;
mod port_forward;
mod stats;
mod system_logs;

use std::sync::Arc;

use http::{Response, StatusCode};
use keelson_agent::NodeHandle;
use keelson_core::node_api::Endpoint;

use super::answer::{Call, Endpoints};
use super::streaming::Streaming;
use crate::reply::{Reply, text};

/// What all endpoints share.
struct EndpointContext {
    node: NodeHandle,
    streaming: Streaming,
}

/// The endpoints of this node.
pub(super) fn of(node: NodeHandle) -> Endpoints {
    let idle = node.settings().kubelet.streaming_connection_idle_timeout.get();
    let context = Arc::new(EndpointContext { node, streaming: Streaming::new(idle) });
    Arc::new(move |call| {
        let context = context.clone();
        Box::pin(async move { serve(&context, call).await })
    })
}

async fn serve(context: &EndpointContext, call: Call) -> Response<Reply> {
    let EndpointContext { node, streaming } = context;
    if call.endpoint.is_debugging() && !node.settings().kubelet.enable_debugging_handlers {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n");
    }
    let answered = match call.endpoint.clone() {
        Endpoint::Healthz(check) => Ok(health::answer(node, check.as_deref(), &call.query)),
        Endpoint::Pods => Ok(pods::ordered(node)),
        Endpoint::RunningPods => Ok(pods::running(node).await),
        Endpoint::Configz => Ok(configz::answer(node)),
        Endpoint::Exec(of) => exec::exec(node, streaming, &of, call).await,
        Endpoint::Attach(of) => exec::attach(node, streaming, &of, call).await,
        Endpoint::Run(of) => exec::run(node, &of, call).await,
        Endpoint::PortForward(of) => port_forward::answer(node, streaming, &of, call).await,
        Endpoint::Logs(parts) => Ok(system_logs::answer(node, parts, call).await),
        Endpoint::Checkpoint(of) => checkpoint::answer(node, &of, call).await,
        Endpoint::ContainerLogs(of) => Ok(container_logs::answer(node, &call, &of).await),
        Endpoint::StatsSummary => Ok(stats::answer(node, &call).await),
        Endpoint::Metrics
        | Endpoint::MetricsCadvisor
        | Endpoint::MetricsResource
        | Endpoint::MetricsProbes => Ok(metrics::answer(node, &call.endpoint).await),
    };
    answered.unwrap_or_else(|refused| *refused)
}
