//! Publishes the overlay's health as conditions of the Node.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio_util::sync::CancellationToken;

use crate::config::LeaseSource;
use crate::shared_state::SharedState;
use crate::source::kube::KubeConnection;

/// The Node's condition for the overlay.
const CONDITION: &str = "OverlayHealthy";
/// Every change of a condition costs all watchers of the Node, so it is updated at most this often.
const LEAST_INTERVAL: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(5);

/// Keeps the Node's conditions up to date until shutdown.
pub async fn publish(
    connection: KubeConnection,
    source: LeaseSource,
    shared: Arc<SharedState>,
    shutdown: CancellationToken,
) {
    let mut changes = shared.subscribe();
    let clear = matches!(&source, LeaseSource::Kube(kube) if kube.clear_network_unavailable);
    let mut cleared = !clear;
    let mut reported: Option<(bool, String)> = None;
    loop {
        changes.mark_unchanged();
        let api = connection.api();
        let (ready, summary) = (shared.is_ready(), shared.problem_summary());
        let mut failed = false;
        if ready && !cleared {
            let up = condition("NetworkUnavailable", "False", "OverlayIsUp", "The overlay runs on this node");
            match api.set_node_condition(&up).await {
                Ok(()) => cleared = true,
                Err(error) => {
                    failed = true;
                    tracing::warn!(%error, "cannot clear NetworkUnavailable");
                }
            }
        }
        let now = (summary.is_none(), summary.unwrap_or_else(|| "all peers are reached".into()));
        if ready && reported.as_ref() != Some(&now) {
            let (status, reason) =
                if now.0 { ("True", "OverlayIsWell") } else { ("False", "OverlayHasProblems") };
            match api.set_node_condition(&condition(CONDITION, status, reason, &now.1)).await {
                Ok(()) => reported = Some(now),
                Err(error) => {
                    failed = true;
                    tracing::debug!(%error, "cannot write the overlay's condition");
                }
            }
        }
        let wait = async {
            match failed {
                true => tokio::time::sleep(RETRY).await,
                false => {
                    let _ = changes.changed().await;
                    if cleared {
                        tokio::time::sleep(LEAST_INTERVAL).await;
                    }
                }
            }
        };
        tokio::select! {
            () = wait => {}
            () = shutdown.cancelled() => return,
        }
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> NodeCondition {
    let now = Some(Time(Timestamp::now()));
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.chars().take(1000).collect()),
        last_transition_time: now.clone(),
        last_heartbeat_time: now,
    }
}
