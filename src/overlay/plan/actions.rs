//! The difference between desired and observed state, as actions in an order that does not interrupt traffic.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::neigh::Entry;
use keelson_netkit::route::Route;
use keelson_netkit::vxlan::Tunnel;
use keelson_netkit::{IfIndex, IfName, Mac};

use super::desired::{Desired, DesiredDevice, DeviceKind};
use super::host_setup::DeviceRole;
use super::kernel_links::KernelLinks;
use super::observed::{Observed, ObservedDevice};
use super::{KERNEL_PROTOCOL, ROUTE_PROTOCOL};

const MAIN_TABLE: u32 = 254;
/// What the kernel takes for an IPv6 route that names no metric.
const IPV6_METRIC: u32 = 1024;

/// One step. Each is idempotent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelAction {
    CreateVxlan { name: IfName, tunnel: Tunnel, mac: Mac, mtu: u32 },
    DeleteLink { name: String },
    Rename { from: String, to: IfName },
    SetMac { device: IfName, mac: Mac },
    SetMtu { device: IfName, mtu: u32 },
    SetUp { device: IfName },
    StopChecksumOffload { device: IfName },
    AddAddress { device: IfName, net: IpNetwork },
    RemoveAddress { device: IfName, net: IpNetwork },
    SetNeighbour { device: IfName, index: IfIndex, addr: IpAddr, mac: Mac },
    RemoveNeighbour { device: IfName, index: IfIndex, addr: IpAddr },
    SetForwarding { device: IfName, index: IfIndex, mac: Mac, remote: IpAddr },
    RemoveForwarding { device: IfName, index: IfIndex, mac: Mac, remote: IpAddr },
    SetRoute(Route),
    RemoveRoute(Route),
}

/// What to do next. Devices come first: while one has to be created, its entries wait for the next round. The plan for a
/// converged state is empty.
pub fn plan(desired: &Desired, observed: &Observed) -> Vec<KernelAction> {
    let mut actions = Vec::new();
    let mut settled: HashMap<DeviceRole, &ObservedDevice> = HashMap::new();
    for device in &desired.devices {
        if let Some(found) = shape(device, observed, &mut actions) {
            settled.insert(device.role, found);
        }
    }
    // The tun device is listed once for each family; neither may remove the other's address.
    for (role, found) in &settled {
        let wanted: Vec<&DesiredDevice> = desired.devices.iter().filter(|d| d.role == *role).collect();
        addresses(&wanted, found, &mut actions);
        entries(&wanted, found, &mut actions);
    }
    let links = KernelLinks {
        underlay: observed.underlay,
        devices: desired
            .devices
            .iter()
            .filter_map(|d| Some((d.role, d.name.clone(), settled.get(&d.role)?.index)))
            .collect(),
    };
    routes(desired, observed, &links, &mut actions);
    removals(desired, observed, &settled, &mut actions);
    actions
}

/// Creates or corrects a device; returns it once entries can be added to it.
fn shape<'a>(
    device: &DesiredDevice,
    observed: &'a Observed,
    actions: &mut Vec<KernelAction>,
) -> Option<&'a ObservedDevice> {
    let name = &device.name;
    let found = observed.device(name.as_str());
    match (&device.kind, found) {
        (DeviceKind::Tun, None) => return None,
        (DeviceKind::Tun, Some(found)) if found.kind.as_deref() != Some("tun") => return None,
        (DeviceKind::Tun, Some(_)) => {}
        (DeviceKind::Vxlan { tunnel, mac }, found) => {
            let create = KernelAction::CreateVxlan {
                name: name.clone(),
                tunnel: tunnel.clone(),
                mac: *mac,
                mtu: device.mtu,
            };
            match found {
                Some(found) if found.tunnel.as_ref() == Some(tunnel) => {}
                Some(_) => {
                    actions.extend([KernelAction::DeleteLink { name: name.to_string() }, create]);
                    return None;
                }
                None => {
                    // It may have been renamed: then a device has the same tunnel, which no second device can have.
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
                            actions
                                .push(KernelAction::Rename { from: renamed.name.clone(), to: name.clone() });
                        }
                        (None, Some(stale)) => {
                            actions.extend([KernelAction::DeleteLink { name: stale.name.clone() }, create]);
                        }
                        (None, None) => actions.push(create),
                    }
                    return None;
                }
            }
            if found.is_some_and(|found| found.mac != Some(*mac)) {
                actions.push(KernelAction::SetMac { device: name.clone(), mac: *mac });
            }
            if !device.checksum_offload && found.is_some_and(|found| found.checksum_offload == Some(true)) {
                actions.push(KernelAction::StopChecksumOffload { device: name.clone() });
            }
        }
    }
    let found = found?;
    if found.mtu != device.mtu {
        actions.push(KernelAction::SetMtu { device: name.clone(), mtu: device.mtu });
    }
    if !found.up {
        actions.push(KernelAction::SetUp { device: name.clone() });
        // The kernel refuses routes over a device that is down.
        return None;
    }
    Some(found)
}

fn addresses(wanted: &[&DesiredDevice], found: &ObservedDevice, actions: &mut Vec<KernelAction>) {
    for device in wanted {
        if !found.addresses.contains(&device.address) {
            actions.push(KernelAction::AddAddress { device: device.name.clone(), net: device.address });
        }
    }
    let Some(first) = wanted.first() else { return };
    let link_local = |net: &IpNetwork| matches!(net.ip(), IpAddr::V6(a) if a.is_unicast_link_local());
    let foreign = |net: &&IpNetwork| !wanted.iter().any(|d| d.address == **net) && !link_local(net);
    for net in found.addresses.iter().filter(foreign) {
        actions.push(KernelAction::RemoveAddress { device: first.name.clone(), net: *net });
    }
}

fn entries(wanted: &[&DesiredDevice], found: &ObservedDevice, actions: &mut Vec<KernelAction>) {
    let at = |list: &[Entry]| -> HashSet<(IpAddr, Mac)> {
        list.iter().filter(|e| e.permanent).map(|e| (e.addr, e.mac)).collect()
    };
    let (neighbours, forwarding) = (at(&found.neighbours), at(&found.forwarding));
    for device in wanted {
        let (name, index) = (&device.name, found.index);
        for (addr, mac) in device.neighbours.iter().filter(|entry| !neighbours.contains(*entry)) {
            actions.push(KernelAction::SetNeighbour { device: name.clone(), index, addr: *addr, mac: *mac });
        }
        for (mac, remote) in
            device.forwarding.iter().filter(|(mac, remote)| !forwarding.contains(&(*remote, *mac)))
        {
            actions.push(KernelAction::SetForwarding {
                device: name.clone(),
                index,
                mac: *mac,
                remote: *remote,
            });
        }
    }
}

/// Sets missing routes, then removes those of ours that are no longer wanted.
fn routes(desired: &Desired, observed: &Observed, links: &KernelLinks, actions: &mut Vec<KernelAction>) {
    let at: HashMap<IpNetwork, usize> = desired.routes.iter().enumerate().map(|(i, r)| (r.dst, i)).collect();
    let mut there = vec![false; desired.routes.len()];
    let mut foreign = Vec::new();
    for found in observed.routes.iter().filter(|r| in_main_table(r)) {
        match at.get(&found.dst) {
            Some(i) => {
                there[*i] |=
                    links.resolve_route(&desired.routes[*i]).is_some_and(|wanted| is_same(&wanted, found));
            }
            None if is_ours(found, desired, links) => foreign.push(KernelAction::RemoveRoute(found.clone())),
            None => {}
        }
    }
    let missing = desired.routes.iter().zip(there).filter(|(_, there)| !there);
    actions.extend(missing.filter_map(|(wanted, _)| links.resolve_route(wanted)).map(KernelAction::SetRoute));
    actions.extend(foreign);
}

fn is_ours(route: &Route, desired: &Desired, links: &KernelLinks) -> bool {
    let over_ours = route.link.is_some_and(|link| links.is_ours(link))
        && route.protocol != KERNEL_PROTOCOL
        && desired.networks.iter().any(|net| net.contains(route.dst.ip()));
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

/// Removes unwanted entries of ours, after the routes, so that no route leads to a missing entry.
fn removals(
    desired: &Desired,
    observed: &Observed,
    settled: &HashMap<DeviceRole, &ObservedDevice>,
    actions: &mut Vec<KernelAction>,
) {
    for (role, found) in settled {
        let of_role = || desired.devices.iter().filter(|d| d.role == *role);
        let Some(device) = of_role().next().map(|d| d.name.clone()) else { continue };
        let index = found.index;
        let forwarding: HashMap<Mac, IpAddr> = of_role().flat_map(|d| d.forwarding.iter().copied()).collect();
        let present: HashSet<(Mac, IpAddr)> = found.forwarding.iter().map(|e| (e.mac, e.addr)).collect();
        for entry in found.forwarding.iter().filter(|e| e.permanent) {
            // The entry of a peer that moved is replaced above; only a second one beside the right one is removed.
            let stale = match forwarding.get(&entry.mac) {
                None => true,
                Some(remote) => *remote != entry.addr && present.contains(&(entry.mac, *remote)),
            };
            if stale {
                actions.push(KernelAction::RemoveForwarding {
                    device: device.clone(),
                    index,
                    mac: entry.mac,
                    remote: entry.addr,
                });
            }
        }
        let neighbours: HashSet<IpAddr> = of_role().flat_map(|d| d.neighbours.iter().map(|n| n.0)).collect();
        for entry in found.neighbours.iter().filter(|e| e.permanent && !neighbours.contains(&e.addr)) {
            actions.push(KernelAction::RemoveNeighbour { device: device.clone(), index, addr: entry.addr });
        }
    }
    for name in desired.retired.iter().filter(|name| observed.device(name.as_str()).is_some()) {
        actions.push(KernelAction::DeleteLink { name: name.to_string() });
    }
}

impl fmt::Display for KernelAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelAction::CreateVxlan { name, .. } => write!(f, "create {name}"),
            KernelAction::DeleteLink { name } => write!(f, "delete {name}"),
            KernelAction::Rename { from, to } => write!(f, "rename {from} to {to}"),
            KernelAction::SetMac { device, mac } => write!(f, "give {device} the address {mac}"),
            KernelAction::SetMtu { device, mtu } => write!(f, "give {device} an MTU of {mtu}"),
            KernelAction::SetUp { device } => write!(f, "set {device} up"),
            KernelAction::StopChecksumOffload { device } => write!(f, "stop checksum offload on {device}"),
            KernelAction::AddAddress { device, net } => write!(f, "add {net} to {device}"),
            KernelAction::RemoveAddress { device, net } => write!(f, "remove {net} from {device}"),
            KernelAction::SetNeighbour { device, addr, mac, .. } => {
                write!(f, "set {addr} to {mac} on {device}")
            }
            KernelAction::RemoveNeighbour { device, addr, .. } => write!(f, "forget {addr} on {device}"),
            KernelAction::SetForwarding { device, mac, remote, .. } => {
                write!(f, "forward {mac} to {remote} on {device}")
            }
            KernelAction::RemoveForwarding { device, mac, remote, .. } => {
                write!(f, "stop forwarding {mac} to {remote} on {device}")
            }
            KernelAction::SetRoute(route) => write!(f, "route {}", route.dst),
            KernelAction::RemoveRoute(route) => write!(f, "stop routing {}", route.dst),
        }
    }
}
