//! From what was found and done to what is told: the status, and what becomes of it on the Node.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use keelson_apiserver::Api;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::LeaseSource;
use crate::engine::{Engine, Round};
use crate::plan::Carrier;
use crate::source::View;
use crate::status::{PeerStatus, Status};

/// The Node's condition that says whether the overlay works.
pub const CONDITION: &str = "OverlayHealthy";
/// A condition that flickers costs every watcher of the Node; it follows at most this often.
const PACE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_secs(5);

/// What is told of one round.
pub fn status(
    engine: &Engine,
    round: &Round,
    view: &View,
    problems: Vec<String>,
    repairs: u64,
    ready: bool,
) -> Status {
    let conf = engine.conf();
    let peers = round.peers.iter().map(|peer| {
        let why: Vec<String> =
            round.unreachable.iter().filter(|u| u.holder == peer.holder).map(|u| u.why.clone()).collect();
        let public = peer.places().next().map(|p| p.public.to_string()).unwrap_or_default();
        PeerStatus {
            holder: peer.holder.clone(),
            subnets: peer.subnets().map(|net| net.to_string()).collect(),
            public,
            path: match round.carriers.get(&peer.holder) {
                Some(Carrier::Vxlan) => "vxlan",
                Some(Carrier::Udp) => "udp",
                Some(Carrier::Direct) => "direct",
                None => "none",
            }
            .into(),
            problems: why,
            ..PeerStatus::default()
        }
    });
    Status {
        backend: conf.backend.name().to_owned(),
        networks: conf.networks().map(|net| net.to_string()).collect(),
        subnets: round.subnets.iter().map(|net| net.to_string()).collect(),
        interface: round.underlay.name.clone(),
        public: round.own.public4.iter().chain(round.own.public6.iter()).map(ToString::to_string).collect(),
        mtu: round.mtu,
        leases: engine.source_name().to_owned(),
        heard: view.heard && view.trouble.is_none(),
        peers: peers.collect(),
        problems,
        repairs,
        ready,
        counters: round.counters.clone(),
    }
}

/// Keeps the Node's conditions as the status says, until shutdown.
pub async fn follow(
    api: Api,
    source: LeaseSource,
    mut status: watch::Receiver<Status>,
    shutdown: CancellationToken,
) {
    let clear = matches!(&source, LeaseSource::Kube(kube) if kube.clear_network_unavailable);
    let mut cleared = !clear;
    let mut told: Option<(bool, String)> = None;
    loop {
        let (ready, summary) = {
            let now = status.borrow_and_update();
            (now.ready, now.summary())
        };
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
                    let _ = status.changed().await;
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
