//! What a few peers that changed need, without a look at all the others.

use std::collections::HashSet;
use std::net::IpAddr;

use keelson_netkit::route::Route;
use keelson_netkit::{IfIndex, IfName, IpNet, Mac};

use super::actions::Action;
use super::situation::{Carrier, Role, Share, Situation, Via, WantedRoute};
use super::{Observed, ROUTE_PROTOCOL};
use crate::lease::Place;

/// The numbers that the kernel has for our devices and for the one that hosts share, as of the last look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ground {
    pub underlay: Option<IfIndex>,
    pub devices: Vec<(Role, IfName, IfIndex)>,
}

impl Ground {
    /// None while something that should be there is not.
    pub fn of(situation: &Situation, roles: impl Iterator<Item = Role>, observed: &Observed) -> Option<Self> {
        let mut devices: Vec<(Role, IfName, IfIndex)> = Vec::new();
        for role in roles {
            let name = role.name(&situation.backend)?;
            let index = observed.device(name.as_str())?.index;
            if !devices.iter().any(|d| d.0 == role) {
                devices.push((role, name, index));
            }
        }
        Some(Ground { underlay: Some(observed.underlay?), devices })
    }

    pub fn is_ours(&self, link: IfIndex) -> bool {
        self.devices.iter().any(|d| d.2 == link)
    }

    pub fn role(&self, link: IfIndex) -> Option<Role> {
        self.devices.iter().find(|d| d.2 == link).map(|d| d.0)
    }

    fn device(&self, role: Role) -> Option<(&IfName, IfIndex)> {
        self.devices.iter().find(|d| d.0 == role).map(|(_, name, index)| (name, *index))
    }

    /// The route with numbers instead of names; None where its device is not there.
    pub fn concrete(&self, wanted: &WantedRoute) -> Option<Route> {
        let mut route = Route { protocol: ROUTE_PROTOCOL, ..Route::to(wanted.dst) };
        match wanted.via {
            Via::Device { role, gateway } => {
                route.link = Some(self.device(role)?.1);
                (route.gateway, route.onlink) = (gateway, gateway.is_some());
            }
            Via::Underlay { gateway } => (route.link, route.gateway) = (Some(self.underlay?), Some(gateway)),
        }
        Some(route)
    }
}

/// The steps from what peers needed to what they need, in an order that interrupts nothing. None where the ground does not
/// bear them: then only a look at everything helps. `is_used` tells whether any lease has a tunnel's end, by family.
pub fn follow(
    situation: &Situation,
    ground: &Ground,
    before: &[(Place, Carrier)],
    after: &[(Place, Carrier)],
    is_used: impl Fn(Mac, bool) -> bool,
) -> Option<Vec<Action>> {
    let shares = |list: &[(Place, Carrier)]| -> Vec<Share> {
        list.iter().map(|(place, carrier)| situation.share(place, *carrier)).collect()
    };
    let (before, after) = (shares(before), shares(after));
    let mut actions = Vec::new();
    for (role, addr, mac) in after.iter().filter_map(|s| s.neighbour) {
        let (device, index) = ground.device(role)?;
        actions.push(Action::SetNeighbour { device: device.clone(), index, addr, mac });
    }
    for (role, mac, remote) in after.iter().filter_map(|s| s.forwarding) {
        let (device, index) = ground.device(role)?;
        actions.push(Action::SetForwarding { device: device.clone(), index, mac, remote });
    }
    for route in after.iter().filter_map(|s| s.route) {
        actions.push(Action::SetRoute(ground.concrete(&route)?));
    }
    let routed: HashSet<IpNet> = after.iter().filter_map(|s| Some(s.route?.dst)).collect();
    for route in before.iter().filter_map(|s| s.route).filter(|r| !routed.contains(&r.dst)) {
        actions.push(Action::RemoveRoute(ground.concrete(&route)?));
    }
    let mut freed = HashSet::new();
    for (role, mac, remote) in before.iter().filter_map(|s| s.forwarding) {
        let (device, index) = ground.device(role)?;
        if !is_used(mac, role == Role::Tunnel4) && freed.insert((role, mac)) {
            actions.push(Action::RemoveForwarding { device: device.clone(), index, mac, remote });
        }
    }
    let neighbours: HashSet<(Role, IpAddr)> =
        after.iter().filter_map(|s| s.neighbour.map(|n| (n.0, n.1))).collect();
    for (role, addr, _) in before.iter().filter_map(|s| s.neighbour) {
        let (device, index) = ground.device(role)?;
        if !neighbours.contains(&(role, addr)) {
            actions.push(Action::RemoveNeighbour { device: device.clone(), index, addr });
        }
    }
    Some(actions)
}
