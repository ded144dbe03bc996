//! Whether something that the kernel tells of is a reason to look at everything. What tells of just what should be there,
//! such as the echo of our own doing, is none; neither are other people's routes, neighbours and rules.

use std::net::IpAddr;

use keelson_netkit::monitor::{Change, NeighbourChange};
use keelson_netkit::route::Route;

use super::actions::{in_main_table, is_same};
use super::follow::Ground;
use super::situation::{Fallen, Share, Situation};
use super::{KERNEL_PROTOCOL, ROUTE_PROTOCOL};
use crate::lease::{Place, Roll};

/// What should be there, to hold a change against.
pub struct Claim<'a> {
    pub situation: &'a Situation,
    pub ground: &'a Ground,
    pub roll: &'a Roll,
    pub fallen: &'a Fallen,
    /// Ways to these tell which interface is the one to use.
    pub far: &'a [IpAddr],
    /// Our nf_tables tables, and the port by which we change them ourselves.
    pub tables: &'a [&'a str],
    pub port: u32,
}

impl Claim<'_> {
    pub fn is_touched_by(&self, change: &Change) -> bool {
        match change {
            Change::Link(link) | Change::Address(link) => {
                Some(*link) == self.ground.underlay || self.ground.is_ours(*link)
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
        let standing = || self.situation.standing_routes().find(|wanted| wanted.dst == route.dst);
        let wanted = self.share(self.roll.at(route.dst)).and_then(|share| share.route).or_else(standing);
        if let Some(wanted) = wanted {
            let same = self.ground.concrete(&wanted).is_some_and(|wanted| is_same(&wanted, route));
            return gone == same;
        }
        let over_ours = route.link.is_some_and(|link| self.ground.is_ours(link));
        let within = self.situation.networks.iter().any(|net| net.contains(route.dst.addr));
        let ours =
            route.protocol == ROUTE_PROTOCOL || (over_ours && within && route.protocol != KERNEL_PROTOCOL);
        (ours && !gone) || self.far.iter().any(|addr| route.dst.contains(*addr))
    }

    fn by_neighbour(&self, told: &NeighbourChange) -> bool {
        let Some(role) = self.ground.role(told.link) else { return false };
        let wanted = match (told.forwarding, told.addr, told.mac) {
            (true, Some(remote), Some(mac)) => {
                let of_role = self.roll.of_mac(mac, true).into_iter().chain(self.roll.of_mac(mac, false));
                let mut shares = of_role.filter_map(|found| self.share(Some(found))?.forwarding);
                shares.find(|f| f.0 == role).map(|(_, _, to)| to == remote)
            }
            (false, Some(addr), mac) => {
                let share = self.share(self.roll.behind(addr)).and_then(|share| share.neighbour);
                share.filter(|n| n.0 == role).map(|(_, _, wanted)| Some(wanted) == mac)
            }
            // Entries that lead nowhere in particular are not ours.
            _ => return false,
        };
        match wanted {
            // One that goes may have lost its link-layer address already.
            Some(same) if told.gone => same || !told.forwarding,
            Some(same) => !same || !told.permanent,
            None => told.permanent && !told.gone,
        }
    }

    fn share(&self, found: Option<(&std::sync::Arc<str>, &Place)>) -> Option<Share> {
        let (holder, place) = found?;
        let fallen_back = self.fallen.contains(&(holder.clone(), place.subnet.is_v4()));
        let carrier = self.situation.carrier(place, fallen_back).ok()?;
        Some(self.situation.share(place, carrier))
    }
}
