//! The overlay network as this host knows it: leases, how peers are reached, and the status apart from the peers.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::Backend;
use crate::lease::{Lease, LeaseTable};
use crate::plan::{Carrier, DeviceRole, FallbackPeers, HostSetup, TUN_NAME};
use crate::probe::ProbeTarget;
use crate::probe_results::ProbeResults;

#[derive(Debug, Default)]
pub struct Network {
    pub leases: LeaseTable,
    /// None until the underlay was found.
    pub setup: Option<HostSetup>,
    /// Peers reached by udp instead of the tunnel, as configured in the kernel.
    pub fallback_peers: FallbackPeers,
    /// Peers with a subnet that the backend does not reach.
    pub unreachable: BTreeSet<Arc<str>>,
    pub summary: Summary,
}

/// The status apart from the peers.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    pub leases: &'static str,
    /// Whether leases come from their source, not from the saved state.
    pub synced: bool,
    pub ready: bool,
    pub interface: String,
    pub public: Vec<String>,
    /// Problems of this host, from the last reconcile and the lease source.
    pub problems: Vec<String>,
    pub repairs: u64,
    pub counters: Vec<(String, u64)>,
    /// Netlink messages sent, and bytes received.
    pub traffic: (u64, u64),
}

impl Network {
    /// The problems of a peer.
    pub fn problems(&self, results: &ProbeResults, peer: &Lease) -> Vec<String> {
        let Some(setup) = &self.setup else { return Vec::new() };
        let mut problems = Vec::new();
        for leased in peer.leased_subnets() {
            let v4 = leased.subnet.is_ipv4();
            let fallen_back = self.fallback_peers.contains(&(peer.holder.clone(), v4));
            match setup.carrier(leased, fallen_back) {
                Err(why) => problems.push(why),
                Ok(carrier) => problems.extend(results.problem(&peer.holder, leased, carrier, setup.mtu())),
            }
        }
        problems
    }

    /// Updates whether a peer has a subnet that is not reached.
    pub fn update_unreachable(&mut self, holder: &Arc<str>) {
        let Some(setup) = &self.setup else { return };
        let peer = self.leases.peer(holder);
        let missed = |peer: &Lease| peer.leased_subnets().any(|leased| setup.carrier(leased, false).is_err());
        match peer.is_some_and(|peer| missed(&peer)) {
            true => self.unreachable.insert(holder.clone()),
            false => self.unreachable.remove(holder),
        };
    }

    /// The same for all peers.
    pub fn update_all_unreachable(&mut self) {
        self.unreachable.clear();
        let holders: Vec<Arc<str>> = match self.setup.as_ref().map(|s| &s.backend) {
            Some(Backend::HostGw | Backend::None) => self.leases.peers().map(|peer| peer.holder).collect(),
            _ => return,
        };
        holders.iter().for_each(|holder| self.update_unreachable(holder));
    }

    /// The probe targets of a peer, one for each family that it is reached in.
    pub fn targets(&self, holder: &str) -> Vec<ProbeTarget> {
        let (Some(setup), Some(peer)) = (&self.setup, self.leases.peer(holder)) else {
            return Vec::new();
        };
        let may_fall_back = matches!(&setup.backend, Backend::Vxlan(vxlan) if vxlan.fallback_port.is_some());
        let paths = setup.paths(&peer, &self.fallback_peers);
        paths
            .map(|(leased, carrier)| {
                let v4 = leased.subnet.is_ipv4();
                let direct = carrier == Carrier::Direct;
                let tunnelled = may_fall_back && !direct;
                ProbeTarget {
                    holder: peer.holder.clone(),
                    carrier,
                    overlay: if direct { leased.public } else { leased.subnet.ip() },
                    public: leased.public,
                    device: DeviceRole::tunnel(v4).name(&setup.backend).filter(|_| tunnelled),
                    fallback: TUN_NAME.try_into().ok().filter(|_| tunnelled),
                    mtu: setup.mtu(),
                }
            })
            .collect()
    }
}
