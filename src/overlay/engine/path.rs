//! The udp data path: started where it is needed, and told the peers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use keelson_netkit::IpNet;
use keelson_overlay_udp as udp;

use super::{Done, Engine, Round};
use crate::config::Backend;
use crate::plan::TUN_NAME;

/// The data path, with what it was started for.
pub(super) struct Served {
    pub(super) path: udp::Path,
    listen: Vec<SocketAddr>,
    subnets: Vec<IpNet>,
}

impl Engine {
    fn port(&self) -> Option<u16> {
        match &self.conf.backend {
            Backend::Udp { port } => Some(*port),
            Backend::Vxlan(vxlan) => vxlan.fallback_port,
            _ => None,
        }
    }

    /// Starts the path where it is needed, again when it gave up or the address moved. It learns all peers when it is new,
    /// or when `rearranged` says that they may be others.
    pub(super) fn tend_path(&mut self, round: &mut Round, rearranged: bool) -> Result<(), String> {
        let Some(port) = self.port() else { return Ok(()) };
        let local = [self.conf.v4.and(round.underlay.v4), self.conf.v6.and(round.underlay.v6)];
        let listen: Vec<SocketAddr> = local.into_iter().flatten().map(|addr| (addr, port).into()).collect();
        let outdated = self.path.as_ref().and_then(|served| match served.path.failure() {
            Some(why) => Some(why),
            None if served.listen != listen => Some("this host's address changed".to_owned()),
            None if served.subnets != round.subnets => Some("this host's subnet changed".to_owned()),
            None => None,
        });
        if let Some(why) = outdated {
            round.done.add(format!("start the udp data path again: {why}"));
            self.path = None;
        }
        let fresh = self.path.is_none();
        if fresh {
            let subnets = round.subnets.clone();
            let device = TUN_NAME.try_into().map_err(|e: keelson_netkit::IfNameError| e.to_string())?;
            let config =
                udp::Config { device, listen: listen.clone(), subnets: subnets.clone(), queues: None };
            let path = udp::Path::start(&config).map_err(|e| e.to_string())?;
            self.path = Some(Served { path, listen, subnets });
        }
        let Some(path) = self.path() else { return Ok(()) };
        if fresh || rearranged {
            path.peers().replace(self.everybody(port));
        }
        if rearranged {
            round.done.add("tell the udp data path its peers");
        }
        round.counters = path.counters().rows().map(|(name, n)| (name.to_owned(), n)).collect();
        Ok(())
    }

    /// Tells the path what became of whoever is published under these addresses.
    pub(super) fn follow_path(&self, publics: impl Iterator<Item = IpAddr>, done: &mut Done) {
        let (Some(path), Some(port)) = (self.path(), self.port()) else { return };
        let publics: BTreeSet<IpAddr> = publics.collect();
        for public in publics {
            let endpoint = SocketAddr::from((public, port));
            let subnets: Vec<IpNet> = self.board.picture().roll.under(public).collect();
            done.add(format_args!("carry {} subnets to {endpoint}", subnets.len()));
            match subnets.is_empty() {
                true => drop(path.peers().remove(endpoint)),
                false => drop(path.peers().set(udp::Peer { endpoint, subnets })),
            }
        }
    }

    /// One peer for each public address, which may hold several leases.
    fn everybody(&self, port: u16) -> Vec<udp::Peer> {
        let picture = self.board.picture();
        let mut peers: Vec<udp::Peer> = Vec::new();
        for (public, subnet) in picture.roll.published() {
            let endpoint = SocketAddr::from((public, port));
            match peers.last_mut() {
                Some(last) if last.endpoint == endpoint => last.subnets.push(subnet),
                _ => peers.push(udp::Peer { endpoint, subnets: vec![subnet] }),
            }
        }
        peers
    }
}
