//! Starts the udp data path where it is needed, and keeps its peers up to date.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use keelson_kit::cidr::IpNetwork;
use keelson_overlay_udp as udp;

use super::{ActionLog, Engine, ReconcileReport};
use crate::config::Backend;
use crate::plan::TUN_NAME;

/// The data path, with the settings it was started with.
pub(super) struct RunningPath {
    pub(super) path: udp::Path,
    listen: Vec<SocketAddr>,
    subnets: Vec<IpNetwork>,
}

impl Engine {
    fn port(&self) -> Option<u16> {
        match &self.conf.backend {
            Backend::Udp { port } => Some(*port),
            Backend::Vxlan(vxlan) => vxlan.fallback_port,
            _ => None,
        }
    }

    /// Starts the path where it is needed, and again when it failed or this host's address changed. Sets all peers when the
    /// path is new or when `peers_changed`.
    pub(super) fn ensure_udp_path(
        &mut self,
        report: &mut ReconcileReport,
        peers_changed: bool,
    ) -> Result<(), String> {
        let Some(port) = self.port() else { return Ok(()) };
        let local = [self.conf.v4.and(report.underlay.v4), self.conf.v6.and(report.underlay.v6)];
        let listen: Vec<SocketAddr> = local.into_iter().flatten().map(|addr| (addr, port).into()).collect();
        let outdated = self.path.as_ref().and_then(|running| match running.path.failure() {
            Some(why) => Some(why),
            None if running.listen != listen => Some("this host's address changed".to_owned()),
            None if running.subnets != report.subnets => Some("this host's subnet changed".to_owned()),
            None => None,
        });
        if let Some(why) = outdated {
            report.performed.add(format!("start the udp data path again: {why}"));
            self.path = None;
        }
        let fresh = self.path.is_none();
        if fresh {
            let subnets = report.subnets.clone();
            let device = TUN_NAME.try_into().map_err(|e: keelson_netkit::IfNameError| e.to_string())?;
            let config =
                udp::Config { device, listen: listen.clone(), subnets: subnets.clone(), queues: None };
            let path = udp::Path::start(&config).map_err(|e| e.to_string())?;
            self.path = Some(RunningPath { path, listen, subnets });
        }
        let Some(path) = self.path() else { return Ok(()) };
        if fresh || peers_changed {
            path.peers().replace(self.udp_peers(port));
        }
        if peers_changed {
            report.performed.add("set the peers of the udp data path");
        }
        report.counters = path.counters().rows().map(|(name, n)| (name.to_owned(), n)).collect();
        Ok(())
    }

    /// Updates the path's peers with these public addresses.
    pub(super) fn update_udp_peers(&self, publics: impl Iterator<Item = IpAddr>, performed: &mut ActionLog) {
        let (Some(path), Some(port)) = (self.path(), self.port()) else { return };
        let publics: BTreeSet<IpAddr> = publics.collect();
        for public in publics {
            let endpoint = SocketAddr::from((public, port));
            let subnets: Vec<IpNetwork> = self.shared.network().leases.subnets_at(public).collect();
            performed.add(format_args!("carry {} subnets to {endpoint}", subnets.len()));
            match subnets.is_empty() {
                true => drop(path.peers().remove(endpoint)),
                false => drop(path.peers().set(udp::Peer { endpoint, subnets })),
            }
        }
    }

    /// One peer for each public address, which may have several leases.
    fn udp_peers(&self, port: u16) -> Vec<udp::Peer> {
        let network = self.shared.network();
        let mut peers: Vec<udp::Peer> = Vec::new();
        for (public, subnet) in network.leases.all_by_public() {
            let endpoint = SocketAddr::from((public, port));
            match peers.last_mut() {
                Some(last) if last.endpoint == endpoint => last.subnets.push(subnet),
                _ => peers.push(udp::Peer { endpoint, subnets: vec![subnet] }),
            }
        }
        peers
    }
}
