//! Decides whether a kernel notification is a reason for a full reconcile. Notifications of the desired state, such as
//! those of our own changes, are none; neither are routes, neighbours and rules of other programs.

use std::net::IpAddr;

use keelson_netkit::monitor::{Change, NeighbourChange};
use keelson_netkit::route::Route;

use super::actions::{in_main_table, is_same};
use super::host_setup::{FallbackPeers, HostSetup, KernelEntries};
use super::kernel_links::KernelLinks;
use super::{KERNEL_PROTOCOL, ROUTE_PROTOCOL};
use crate::lease::{LeaseTable, LeasedSubnet};

/// The desired state that a notification is compared with.
pub struct ChangeFilter<'a> {
    pub setup: &'a HostSetup,
    pub links: &'a KernelLinks,
    pub leases: &'a LeaseTable,
    pub fallback_peers: &'a FallbackPeers,
    /// Routes to these addresses decide which interface is the underlay.
    pub far: &'a [IpAddr],
    /// Our nf_tables tables, and the netlink port of our own changes to them.
    pub tables: &'a [&'a str],
    pub port: u32,
}

impl ChangeFilter<'_> {
    pub fn needs_reconcile(&self, change: &Change) -> bool {
        match change {
            Change::Link(link) | Change::Address(link) => {
                Some(*link) == self.links.underlay || self.links.is_ours(*link)
            }
            Change::Route { route, gone } => self.by_route(route, *gone),
            Change::Neighbour(neighbour) => self.by_neighbour(neighbour),
            Change::Rules { table, by } => *by != self.port && self.tables.contains(&table.as_str()),
            Change::Anything => true,
        }
    }

    fn by_route(&self, route: &Route, gone: bool) -> bool {
        if !in_main_table(route) {
            return false;
        }
        let standing = || self.setup.standing_routes().find(|wanted| wanted.dst == route.dst);
        let wanted = self
            .kernel_entries(self.leases.by_subnet(route.dst))
            .and_then(|entries| entries.route)
            .or_else(standing);
        if let Some(wanted) = wanted {
            let same = self.links.resolve_route(&wanted).is_some_and(|wanted| is_same(&wanted, route));
            return gone == same;
        }
        let over_ours = route.link.is_some_and(|link| self.links.is_ours(link));
        let within = self.setup.networks.iter().any(|net| net.contains(route.dst.ip()));
        let ours =
            route.protocol == ROUTE_PROTOCOL || (over_ours && within && route.protocol != KERNEL_PROTOCOL);
        (ours && !gone) || self.far.iter().any(|addr| route.dst.contains(*addr))
    }

    fn by_neighbour(&self, change: &NeighbourChange) -> bool {
        let Some(role) = self.links.role(change.link) else { return false };
        let wanted = match (change.forwarding, change.addr, change.mac) {
            (true, Some(remote), Some(mac)) => {
                let of_role = self.leases.by_mac(mac, true).into_iter().chain(self.leases.by_mac(mac, false));
                let mut entries = of_role.filter_map(|found| self.kernel_entries(Some(found))?.forwarding);
                entries.find(|f| f.0 == role).map(|(_, _, to)| to == remote)
            }
            (false, Some(addr), mac) => {
                let entries = self
                    .kernel_entries(self.leases.by_first_address(addr))
                    .and_then(|entries| entries.neighbour);
                entries.filter(|n| n.0 == role).map(|(_, _, wanted)| Some(wanted) == mac)
            }
            // Entries without an address are not ours.
            _ => return false,
        };
        match wanted {
            // A deleted neighbour may be reported without its MAC.
            Some(same) if change.gone => same || !change.forwarding,
            Some(same) => !same || !change.permanent,
            None => change.permanent && !change.gone,
        }
    }

    fn kernel_entries(&self, found: Option<(&std::sync::Arc<str>, &LeasedSubnet)>) -> Option<KernelEntries> {
        let (holder, leased) = found?;
        let fallen_back = self.fallback_peers.contains(&(holder.clone(), leased.subnet.is_ipv4()));
        let carrier = self.setup.carrier(leased, fallen_back).ok()?;
        Some(self.setup.kernel_entries(leased, carrier))
    }
}
