//! The difference between what should be there and what is, as steps in an order that interrupts nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use keelson_netkit::neigh::Entry;
use keelson_netkit::route::Route;
use keelson_netkit::vxlan::Tunnel;
use keelson_netkit::{IfIndex, IfName, IpNet, Mac};

use super::desired::{Desired, Device, Kind};
use super::follow::Ground;
use super::observed::{FoundDevice, Observed};
use super::situation::Role;
use super::{KERNEL_PROTOCOL, ROUTE_PROTOCOL};

const MAIN_TABLE: u32 = 254;
/// What the kernel takes for an IPv6 route that names no metric.
const IPV6_METRIC: u32 = 1024;

/// One step. Each can be repeated without harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    CreateVxlan { name: IfName, tunnel: Tunnel, mac: Mac, mtu: u32 },
    DeleteLink { name: String },
    Rename { from: String, to: IfName },
    SetMac { device: IfName, mac: Mac },
    SetMtu { device: IfName, mtu: u32 },
    SetUp { device: IfName },
    StopChecksumOffload { device: IfName },
    AddAddress { device: IfName, net: IpNet },
    RemoveAddress { device: IfName, net: IpNet },
    SetNeighbour { device: IfName, index: IfIndex, addr: IpAddr, mac: Mac },
    RemoveNeighbour { device: IfName, index: IfIndex, addr: IpAddr },
    SetForwarding { device: IfName, index: IfIndex, mac: Mac, remote: IpAddr },
    RemoveForwarding { device: IfName, index: IfIndex, mac: Mac, remote: IpAddr },
    SetRoute(Route),
    RemoveRoute(Route),
}

/// What to do next. Devices come first: while one has to be made, its entries wait for the next look. The plan for what
/// is as it should be is empty.
pub fn plan(desired: &Desired, observed: &Observed) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut settled: HashMap<Role, &FoundDevice> = HashMap::new();
    for device in &desired.devices {
        if let Some(found) = shape(device, observed, &mut actions) {
            settled.insert(device.role, found);
        }
    }
    // A tun device carries both families, each with its own entry in the list: neither may take the other's address.
    for (role, found) in &settled {
        let wanted: Vec<&Device> = desired.devices.iter().filter(|d| d.role == *role).collect();
        addresses(&wanted, found, &mut actions);
        entries(&wanted, found, &mut actions);
    }
    let ground = Ground {
        underlay: observed.underlay,
        devices: desired
            .devices
            .iter()
            .filter_map(|d| Some((d.role, d.name.clone(), settled.get(&d.role)?.index)))
            .collect(),
    };
    routes(desired, observed, &ground, &mut actions);
    removals(desired, observed, &settled, &mut actions);
    actions
}

/// Brings a device into being and shape; returns it once it is there to be filled.
fn shape<'a>(device: &Device, observed: &'a Observed, actions: &mut Vec<Action>) -> Option<&'a FoundDevice> {
    let name = &device.name;
    let found = observed.device(name.as_str());
    match (&device.kind, found) {
        (Kind::Tun, None) => return None,
        (Kind::Tun, Some(found)) if found.kind.as_deref() != Some("tun") => return None,
        (Kind::Tun, Some(_)) => {}
        (Kind::Vxlan { tunnel, mac }, found) => {
            let create = Action::CreateVxlan {
                name: name.clone(),
                tunnel: tunnel.clone(),
                mac: *mac,
                mtu: device.mtu,
            };
            match found {
                Some(found) if found.tunnel.as_ref() == Some(tunnel) => {}
                Some(_) => {
                    actions.extend([Action::DeleteLink { name: name.to_string() }, create]);
                    return None;
                }
                None => {
                    // Somebody gave it another name: it has the same tunnel then, which no second device can have.
                    let renamed = observed.devices.iter().find(|d| d.tunnel.as_ref() == Some(tunnel));
                    let stale = observed.devices.iter().find(|d| {
                        d.tunnel.as_ref().is_some_and(|t| {
                            t.vni == tunnel.vni
                                && t.port == tunnel.port
                                && t.local
                                    .is_some_and(|l| Some(l.is_ipv4()) == tunnel.local.map(|l| l.is_ipv4()))
                        })
                    });
                    match (renamed, stale) {
                        (Some(renamed), _) => {
                            actions.push(Action::Rename { from: renamed.name.clone(), to: name.clone() });
                        }
                        (None, Some(stale)) => {
                            actions.extend([Action::DeleteLink { name: stale.name.clone() }, create]);
                        }
                        (None, None) => actions.push(create),
                    }
                    return None;
                }
            }
            if found.is_some_and(|found| found.mac != Some(*mac)) {
                actions.push(Action::SetMac { device: name.clone(), mac: *mac });
            }
            if !device.checksum_offload && found.is_some_and(|found| found.checksum_offload == Some(true)) {
                actions.push(Action::StopChecksumOffload { device: name.clone() });
            }
        }
    }
    let found = found?;
    if found.mtu != device.mtu {
        actions.push(Action::SetMtu { device: name.clone(), mtu: device.mtu });
    }
    if !found.up {
        actions.push(Action::SetUp { device: name.clone() });
        // Routes over a device that is down are refused.
        return None;
    }
    Some(found)
}

fn addresses(wanted: &[&Device], found: &FoundDevice, actions: &mut Vec<Action>) {
    for device in wanted {
        if !found.addresses.contains(&device.address) {
            actions.push(Action::AddAddress { device: device.name.clone(), net: device.address });
        }
    }
    let Some(first) = wanted.first() else { return };
    let link_local = |net: &IpNet| matches!(net.addr, IpAddr::V6(a) if a.is_unicast_link_local());
    let strange = |net: &&IpNet| !wanted.iter().any(|d| d.address == **net) && !link_local(net);
    for net in found.addresses.iter().filter(strange) {
        actions.push(Action::RemoveAddress { device: first.name.clone(), net: *net });
    }
}

fn entries(wanted: &[&Device], found: &FoundDevice, actions: &mut Vec<Action>) {
    let at = |list: &[Entry]| -> HashSet<(IpAddr, Mac)> {
        list.iter().filter(|e| e.permanent).map(|e| (e.addr, e.mac)).collect()
    };
    let (neighbours, forwarding) = (at(&found.neighbours), at(&found.forwarding));
    for device in wanted {
        let (name, index) = (&device.name, found.index);
        for (addr, mac) in device.neighbours.iter().filter(|entry| !neighbours.contains(*entry)) {
            actions.push(Action::SetNeighbour { device: name.clone(), index, addr: *addr, mac: *mac });
        }
        for (mac, remote) in
            device.forwarding.iter().filter(|(mac, remote)| !forwarding.contains(&(*remote, *mac)))
        {
            actions.push(Action::SetForwarding { device: name.clone(), index, mac: *mac, remote: *remote });
        }
    }
}

/// Sets the routes that are missing, then removes those of ours that are no longer wanted.
fn routes(desired: &Desired, observed: &Observed, ground: &Ground, actions: &mut Vec<Action>) {
    let at: HashMap<IpNet, usize> = desired.routes.iter().enumerate().map(|(i, r)| (r.dst, i)).collect();
    let mut there = vec![false; desired.routes.len()];
    let mut strange = Vec::new();
    for found in observed.routes.iter().filter(|r| in_main_table(r)) {
        match at.get(&found.dst) {
            Some(i) => {
                there[*i] |=
                    ground.concrete(&desired.routes[*i]).is_some_and(|wanted| is_same(&wanted, found));
            }
            None if is_ours(found, desired, ground) => strange.push(Action::RemoveRoute(found.clone())),
            None => {}
        }
    }
    let missing = desired.routes.iter().zip(there).filter(|(_, there)| !there);
    actions.extend(missing.filter_map(|(wanted, _)| ground.concrete(wanted)).map(Action::SetRoute));
    actions.extend(strange);
}

fn is_ours(route: &Route, desired: &Desired, ground: &Ground) -> bool {
    let over_ours = route.link.is_some_and(|link| ground.is_ours(link))
        && route.protocol != KERNEL_PROTOCOL
        && desired.networks.iter().any(|net| net.contains(route.dst.addr));
    over_ours || route.protocol == ROUTE_PROTOCOL
}

pub(super) fn is_same(wanted: &Route, found: &Route) -> bool {
    found.link == wanted.link
        && found.gateway == wanted.gateway
        && found.protocol == wanted.protocol
        && matches!(found.priority, None | Some(0 | IPV6_METRIC))
}

pub(super) fn in_main_table(route: &Route) -> bool {
    matches!(route.table, None | Some(0 | MAIN_TABLE))
}

/// Entries of ours that are no longer wanted, after the routes, so that no packet is led to an entry that is gone.
fn removals(
    desired: &Desired,
    observed: &Observed,
    settled: &HashMap<Role, &FoundDevice>,
    actions: &mut Vec<Action>,
) {
    for (role, found) in settled {
        let of_role = || desired.devices.iter().filter(|d| d.role == *role);
        let Some(device) = of_role().next().map(|d| d.name.clone()) else { continue };
        let index = found.index;
        let forwarding: HashMap<Mac, IpAddr> = of_role().flat_map(|d| d.forwarding.iter().copied()).collect();
        let present: HashSet<(Mac, IpAddr)> = found.forwarding.iter().map(|e| (e.mac, e.addr)).collect();
        for entry in found.forwarding.iter().filter(|e| e.permanent) {
            // A peer that moved has its entry replaced above; only a second one beside the right one is taken away.
            let stale = match forwarding.get(&entry.mac) {
                None => true,
                Some(remote) => *remote != entry.addr && present.contains(&(entry.mac, *remote)),
            };
            if stale {
                actions.push(Action::RemoveForwarding {
                    device: device.clone(),
                    index,
                    mac: entry.mac,
                    remote: entry.addr,
                });
            }
        }
        let neighbours: HashSet<IpAddr> = of_role().flat_map(|d| d.neighbours.iter().map(|n| n.0)).collect();
        for entry in found.neighbours.iter().filter(|e| e.permanent && !neighbours.contains(&e.addr)) {
            actions.push(Action::RemoveNeighbour { device: device.clone(), index, addr: entry.addr });
        }
    }
    for name in desired.retired.iter().filter(|name| observed.device(name.as_str()).is_some()) {
        actions.push(Action::DeleteLink { name: name.to_string() });
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::CreateVxlan { name, .. } => write!(f, "create {name}"),
            Action::DeleteLink { name } => write!(f, "delete {name}"),
            Action::Rename { from, to } => write!(f, "rename {from} to {to}"),
            Action::SetMac { device, mac } => write!(f, "give {device} the address {mac}"),
            Action::SetMtu { device, mtu } => write!(f, "give {device} an MTU of {mtu}"),
            Action::SetUp { device } => write!(f, "set {device} up"),
            Action::StopChecksumOffload { device } => write!(f, "stop checksum offload on {device}"),
            Action::AddAddress { device, net } => write!(f, "add {net} to {device}"),
            Action::RemoveAddress { device, net } => write!(f, "remove {net} from {device}"),
            Action::SetNeighbour { device, addr, mac, .. } => write!(f, "set {addr} to {mac} on {device}"),
            Action::RemoveNeighbour { device, addr, .. } => write!(f, "forget {addr} on {device}"),
            Action::SetForwarding { device, mac, remote, .. } => {
                write!(f, "forward {mac} to {remote} on {device}")
            }
            Action::RemoveForwarding { device, mac, remote, .. } => {
                write!(f, "stop forwarding {mac} to {remote} on {device}")
            }
            Action::SetRoute(route) => write!(f, "route {}", route.dst),
            Action::RemoveRoute(route) => write!(f, "stop routing {}", route.dst),
        }
    }
}
