//! The bridge as the containers' gateway.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::addr::{self, Family};
use keelson_netkit::link::{self, Link, VethEnd};
use keelson_netkit::{IfName, Mac, Socket, multicast, sysctl};

use super::conf::{BridgeConf, Vlans};
use super::container::SETTLE_PATIENCE;
use super::plan::{self, GatewayPlan};
use super::port::configure_vlans;
use crate::skel::Failure;

/// Puts the gateways' addresses on the bridge, or on its interface in the containers' VLAN, and lets the
/// host forward. Returns that interface, when there is one.
pub fn ensure(
    socket: &mut Socket,
    bridge: &Link,
    conf: &BridgeConf,
    gateways: &[IpNetwork],
) -> Result<Option<Link>, Failure> {
    let vlan = match conf.vlans.access {
        Some(id) if !gateways.is_empty() => Some(vlan_interface(socket, bridge, id, &conf.vlans)?),
        _ => None,
    };
    for gateway in gateways {
        ensure_address(socket, vlan.as_ref().unwrap_or(bridge), *gateway, conf)?;
    }
    if gateways.iter().any(|g| g.is_ipv4()) {
        sysctl::ensure("net/ipv4/ip_forward", "1")?;
    }
    if gateways.iter().any(|g| !g.is_ipv4()) {
        sysctl::ensure("net/ipv6/conf/all/forwarding", "1")?;
    }
    Ok(vlan)
}

fn ensure_address(
    socket: &mut Socket,
    link: &Link,
    wanted: IpNetwork,
    conf: &BridgeConf,
) -> Result<(), Failure> {
    let present = addr::list(socket, link, Family::of(wanted.ip()))?;
    let remove =
        match plan::gateway(&present, wanted, conf.force_address, &link.name).map_err(Failure::config)? {
            GatewayPlan::Keep => return Ok(()),
            GatewayPlan::Add { remove } => remove,
        };
    socket.call_all(remove.into_iter().map(|old| addr::remove(link, old)).collect())?;
    // The first container should not have to wait a second for its gateway.
    let add =
        if conf.duplicate_detection { addr::add(link, wanted) } else { addr::add_undetected(link, wanted) };
    match socket.call(add) {
        // Another ADD was quicker.
        Err(error) if error.is_existing() => {}
        other => drop(other?),
    }
    pin_mac(socket, link)?;
    if let IpAddr::V6(address) = wanted.ip() {
        wait_until_resolvable(link, address);
    }
    Ok(())
}

/// A container that solicits its gateway before the kernel has joined the group for that may be told that there is none. A kernel
/// that is later still, or that does not tell, is not worth a failed pod: the container solicits again.
fn wait_until_resolvable(link: &Link, address: Ipv6Addr) {
    let deadline = Instant::now() + SETTLE_PATIENCE;
    let mut pause = Duration::from_micros(50);
    while !multicast::has_joined_solicited_node(link, address).unwrap_or(true) && Instant::now() < deadline {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// A bridge takes its MAC from its ports, and containers would lose their gateway whenever it changes,
/// unless the MAC was set.
fn pin_mac(socket: &mut Socket, link: &Link) -> Result<(), Failure> {
    let known = link.mac.filter(|mac| *mac != Mac::ZERO);
    let mac = match known {
        Some(mac) => Some(mac),
        // A bridge that has lost its last port has none until it gets another.
        None => link::get_by_name(socket, &link.name)?.mac,
    };
    match mac {
        Some(mac) => socket.call(link::set_mac(link, mac)).map(drop).map_err(Failure::from),
        None => Ok(()),
    }
}

/// A veth with one end on the bridge, in the VLAN, and the other named after both for the addresses.
fn vlan_interface(socket: &mut Socket, bridge: &Link, id: u16, vlans: &Vlans) -> Result<Link, Failure> {
    let text = format!("{}.{id}", bridge.name);
    let name = IfName::try_from(text.as_str())
        .map_err(|e| Failure::config(format!("\"vlan\": the gateway's interface cannot be named: {e}")))?;
    if let Some(found) = link::find(socket, name.as_str())? {
        return Ok(found);
    }
    let peer = IfName::try_from(format!("veth{:x}v{id}", bridge.index.0).as_str())
        .map_err(|e| Failure::internal(e.to_string()))?;
    let mtu = Some(bridge.mtu);
    let near = VethEnd { name: &peer, mac: None, mtu };
    let far = VethEnd { name: &name, mac: None, mtu };
    match socket.call(link::new_veth(&near, Some(bridge.index), &far, None)) {
        Err(error) if error.is_existing() => {}
        other => drop(other?),
    }
    let port = link::get_by_name(socket, peer.as_str())?;
    let access = Vlans { trunk: None, ..vlans.clone() };
    configure_vlans(socket, &port, &access)?;
    let made = link::get_by_name(socket, name.as_str())?;
    socket.call(link::set_up(&made))?;
    Ok(made)
}
