//! Builds the status report.

use keelson_kit::cidr::IpNetwork;

use crate::lease::LeasedSubnet;
use crate::network::Network;
use crate::plan::Carrier;
use crate::shared_state::SharedState;
use crate::status::{PathStatus, PeerStatus, Status};

/// Builds the status. With thousands of peers this is expensive, so it is done on request only.
pub fn status(shared: &SharedState) -> Status {
    let results = shared.results();
    let network = shared.network();
    let Network { leases, setup, fallback_peers, summary, .. } = &*network;
    let peers = leases.peers().map(|peer| {
        let path = |leased: &LeasedSubnet| {
            let v4 = leased.subnet.is_ipv4();
            let fallen_back = fallback_peers.contains(&(peer.holder.clone(), v4));
            let carrier = setup.as_ref().and_then(|s| s.carrier(leased, fallen_back).ok());
            let history = results.history(&peer.holder, v4);
            PathStatus {
                public: leased.public.to_string(),
                path: path_name(carrier).into(),
                loss: history.and_then(|r| r.loss()),
                rtt: history.and_then(|r| r.latest().small).map(milliseconds),
                mtu: history.and_then(|r| r.latest().largest),
            }
        };
        let mut paths = peer.leased_subnets().map(path);
        PeerStatus {
            holder: peer.holder.to_string(),
            subnets: peer.subnets().map(|net| net.to_string()).collect(),
            path: paths.next().unwrap_or_default(),
            second: paths.next(),
            problems: network.problems(&results, &peer),
        }
    });
    let peers = peers.collect();
    let texts = |nets: &[IpNetwork]| nets.iter().map(ToString::to_string).collect();
    Status {
        backend: setup.as_ref().map(|s| s.backend.name()).unwrap_or_default().to_owned(),
        networks: setup.as_ref().map(|s| texts(&s.networks)).unwrap_or_default(),
        subnets: setup.as_ref().map(|s| texts(&s.subnets)).unwrap_or_default(),
        interface: summary.interface.clone(),
        public: summary.public.clone(),
        mtu: setup.as_ref().map(|s| s.mtu()).unwrap_or_default(),
        leases: summary.leases.to_owned(),
        heard: summary.synced,
        peers,
        problems: summary.problems.iter().cloned().chain(leases.rejections().map(str::to_owned)).collect(),
        repairs: summary.repairs,
        ready: summary.ready,
        counters: summary.counters.clone(),
        kernel_requests: summary.traffic.0,
        kernel_bytes: summary.traffic.1,
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

/// Rounded to microseconds.
fn milliseconds(trip: f32) -> f64 {
    (f64::from(trip) * 1e3).round() / 1e3
}
