//! The actions for a few changed peers, without regard to the others.

use std::collections::HashSet;
use std::net::IpAddr;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::Mac;

use super::actions::KernelAction;
use super::host_setup::{Carrier, DeviceRole, HostSetup, KernelEntries};
use super::kernel_links::KernelLinks;
use crate::lease::LeasedSubnet;

/// The actions from peers' paths before to those after a change, in an order that does not interrupt traffic. None where a
/// device is missing: then a full reconcile is needed. `is_used` says whether any lease has a VTEP MAC, by family.
pub fn plan_lease_changes(
    setup: &HostSetup,
    links: &KernelLinks,
    before: &[(LeasedSubnet, Carrier)],
    after: &[(LeasedSubnet, Carrier)],
    is_used: impl Fn(Mac, bool) -> bool,
) -> Option<Vec<KernelAction>> {
    let entries = |list: &[(LeasedSubnet, Carrier)]| -> Vec<KernelEntries> {
        list.iter().map(|(leased, carrier)| setup.kernel_entries(leased, *carrier)).collect()
    };
    let (before, after) = (entries(before), entries(after));
    let mut actions = Vec::new();
    for (role, addr, mac) in after.iter().filter_map(|s| s.neighbour) {
        let (device, index) = links.device(role)?;
        actions.push(KernelAction::SetNeighbour { device: device.clone(), index, addr, mac });
    }
    for (role, mac, remote) in after.iter().filter_map(|s| s.forwarding) {
        let (device, index) = links.device(role)?;
        actions.push(KernelAction::SetForwarding { device: device.clone(), index, mac, remote });
    }
    for route in after.iter().filter_map(|s| s.route) {
        actions.push(KernelAction::SetRoute(links.resolve_route(&route)?));
    }
    let routed: HashSet<IpNetwork> = after.iter().filter_map(|s| Some(s.route?.dst)).collect();
    for route in before.iter().filter_map(|s| s.route).filter(|r| !routed.contains(&r.dst)) {
        actions.push(KernelAction::RemoveRoute(links.resolve_route(&route)?));
    }
    let mut freed = HashSet::new();
    for (role, mac, remote) in before.iter().filter_map(|s| s.forwarding) {
        let (device, index) = links.device(role)?;
        if !is_used(mac, role == DeviceRole::Tunnel4) && freed.insert((role, mac)) {
            actions.push(KernelAction::RemoveForwarding { device: device.clone(), index, mac, remote });
        }
    }
    let neighbours: HashSet<(DeviceRole, IpAddr)> =
        after.iter().filter_map(|s| s.neighbour.map(|n| (n.0, n.1))).collect();
    for (role, addr, _) in before.iter().filter_map(|s| s.neighbour) {
        let (device, index) = links.device(role)?;
        if !neighbours.contains(&(role, addr)) {
            actions.push(KernelAction::RemoveNeighbour { device: device.clone(), index, addr });
        }
    }
    Some(actions)
}
