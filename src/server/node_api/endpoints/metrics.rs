//! /metrics and what lies below it, in Prometheus' text format.

use http::{Response, StatusCode};
use keelson_agent::NodeHandle;
use keelson_core::node_api::Endpoint;
use keelson_kit::metrics::CONTENT_TYPE;

use super::super::traffic;
use crate::reply::{Reply, reply, text};

pub(super) async fn answer(node: &NodeHandle, endpoint: &Endpoint) -> Response<Reply> {
    let written = match endpoint {
        Endpoint::MetricsResource => node.resource_metrics().await,
        Endpoint::MetricsCadvisor => node.cadvisor_metrics().await,
        Endpoint::MetricsProbes => Some(node.probe_metrics()),
        _ => {
            let mut text = node.metrics();
            traffic::write(&mut text);
            Some(text.finish())
        }
    };
    match written {
        Some(written) => reply(StatusCode::OK, CONTENT_TYPE, Reply::Whole(Some(written.into()))),
        None => text(StatusCode::INTERNAL_SERVER_ERROR, "the node could not be measured\n"),
    }
}
