//! From what was found and done to what is told: the status, and what becomes of it on the Node.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use keelson_netkit::IpNet;
use tokio_util::sync::CancellationToken;

use crate::board::{Board, Picture};
use crate::config::LeaseSource;
use crate::lease::Place;
use crate::plan::Carrier;
use crate::source::kube::Connection;
use crate::status::{PathStatus, PeerStatus, Status};

/// The Node's condition that says whether the overlay works.
pub const CONDITION: &str = "OverlayHealthy";
/// A condition that flickers costs every watcher of the Node; it follows at most this often.
const PACE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(5);

/// What is told to whoever asks. With thousands of peers this is work, so it is done only then.
pub fn status(board: &Board) -> Status {
    let book = board.book();
    let picture = board.picture();
    let Picture { roll, situation, fallen, head, .. } = &*picture;
    let peers = roll.peers().map(|peer| {
        let path = |place: &Place| {
            let v4 = place.subnet.is_v4();
            let fallen_back = fallen.contains(&(peer.holder.clone(), v4));
            let carrier = situation.as_ref().and_then(|s| s.carrier(place, fallen_back).ok());
            let record = book.record(&peer.holder, v4);
            PathStatus {
                public: place.public.to_string(),
                path: path_name(carrier).into(),
                loss: record.and_then(|r| r.loss()),
                rtt: record.and_then(|r| r.latest().small).map(milliseconds),
                mtu: record.and_then(|r| r.latest().largest),
            }
        };
        let mut paths = peer.places().map(path);
        PeerStatus {
            holder: peer.holder.to_string(),
            subnets: peer.subnets().map(|net| net.to_string()).collect(),
            path: paths.next().unwrap_or_default(),
            second: paths.next(),
            problems: picture.problems(&book, &peer),
        }
    });
    let peers = peers.collect();
    let texts = |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect();
    Status {
        backend: situation.as_ref().map(|s| s.backend.name()).unwrap_or_default().to_owned(),
        networks: situation.as_ref().map(|s| texts(&s.networks)).unwrap_or_default(),
        subnets: situation.as_ref().map(|s| texts(&s.subnets)).unwrap_or_default(),
        interface: head.interface.clone(),
        public: head.public.clone(),
        mtu: situation.as_ref().map(|s| s.mtu()).unwrap_or_default(),
        leases: head.leases.to_owned(),
        heard: head.heard,
        peers,
        problems: head.problems.iter().cloned().chain(roll.complaints().map(str::to_owned)).collect(),
        repairs: head.repairs,
        ready: head.ready,
        counters: head.counters.clone(),
        kernel_requests: head.traffic.0,
        kernel_bytes: head.traffic.1,
    }
}

fn path_name(carrier: Option<Carrier>) -> &'static str {
    match carrier {
        Some(Carrier::Vxlan) => "vxlan",
        Some(Carrier::Udp) => "udp",
        Some(Carrier::Direct) => "direct",
        None => "none",
    }
}

/// Keeps the Node's conditions as the status says, until shutdown.
pub async fn follow(
    connection: Connection,
    source: LeaseSource,
    board: Arc<Board>,
    shutdown: CancellationToken,
) {
    let mut changes = board.changes();
    let clear = matches!(&source, LeaseSource::Kube(kube) if kube.clear_network_unavailable);
    let mut cleared = !clear;
    let mut told: Option<(bool, String)> = None;
    loop {
        changes.mark_unchanged();
        let api = connection.api();
        let (ready, summary) = (board.is_ready(), board.summary());
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
        if ready && told.as_ref() != Some(&now) {
            let (status, reason) =
                if now.0 { ("True", "OverlayIsWell") } else { ("False", "OverlayHasProblems") };
            match api.set_node_condition(&condition(CONDITION, status, reason, &now.1)).await {
                Ok(()) => told = Some(now),
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
                        tokio::time::sleep(PACE).await;
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

/// To the microsecond.
fn milliseconds(trip: f32) -> f64 {
    (f64::from(trip) * 1e3).round() / 1e3
}
