//! The desired kernel state: devices, neighbours, forwarding entries and routes, computed from leases.

use std::net::IpAddr;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::vxlan::Tunnel;
use keelson_netkit::{IfName, Mac};

use super::host_setup::{DeviceRole, FallbackPeers, HostSetup, KernelEntries, WantedRoute};
use crate::config::{Backend, Vxlan};
use crate::lease::Lease;

/// Everything of ours that should exist, and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    pub devices: Vec<DesiredDevice>,
    pub routes: Vec<WantedRoute>,
    /// Within these, routes over our devices are ours.
    pub networks: Vec<IpNetwork>,
    /// Devices of an earlier configuration; they are removed once no route uses them.
    pub retired: Vec<IfName>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredDevice {
    pub role: DeviceRole,
    pub name: IfName,
    pub kind: DeviceKind,
    pub mtu: u32,
    /// Whether checksums may be left to the hardware; where that is broken, packets other than ICMP vanish.
    pub checksum_offload: bool,
    /// Only the source address of this host's own packets to remote pods, so it has full prefix length.
    pub address: IpNetwork,
    pub neighbours: Vec<(IpAddr, Mac)>,
    pub forwarding: Vec<(Mac, IpAddr)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceKind {
    Vxlan {
        tunnel: Tunnel,
        mac: Mac,
    },
    /// Created by the udp data path; here it only gets its address and routes.
    Tun,
}

/// Computes the desired state. Unreachable peers are left out.
pub fn desired(
    setup: &HostSetup,
    peers: impl Iterator<Item = Lease>,
    fallback_peers: &FallbackPeers,
) -> Desired {
    let mut wanted = Desired { networks: setup.networks.clone(), ..Desired::default() };
    for v4 in [true, false] {
        let Some(subnet) = setup.subnet(v4) else { continue };
        if let Backend::Vxlan(vxlan) = &setup.backend {
            wanted.devices.extend(vxlan_device(setup, vxlan, subnet));
        }
        wanted.devices.extend(tun_device(setup, subnet));
    }
    wanted.routes.extend(setup.standing_routes());
    for peer in peers {
        for (leased, carrier) in setup.paths(&peer, fallback_peers) {
            add(&mut wanted, setup.kernel_entries(&leased, carrier));
        }
    }
    wanted
}

fn add(wanted: &mut Desired, entries: KernelEntries) {
    let KernelEntries { neighbour, forwarding, route } = entries;
    for device in &mut wanted.devices {
        device.neighbours.extend(neighbour.filter(|n| n.0 == device.role).map(|(_, addr, mac)| (addr, mac)));
        device.forwarding.extend(forwarding.filter(|f| f.0 == device.role).map(|(_, mac, to)| (mac, to)));
    }
    wanted.routes.extend(route);
}

fn vxlan_device(setup: &HostSetup, vxlan: &Vxlan, subnet: IpNetwork) -> Option<DesiredDevice> {
    let v4 = subnet.is_ipv4();
    let role = DeviceRole::tunnel(v4);
    Some(DesiredDevice {
        role,
        name: role.name(&setup.backend)?,
        kind: DeviceKind::Vxlan {
            tunnel: Tunnel {
                vni: vxlan.vni,
                port: vxlan.port,
                local: Some(setup.local(v4)?),
                underlay: Some(setup.underlay),
                learning: vxlan.learning,
                group_policy: vxlan.group_policy,
            },
            mac: if v4 { setup.macs.0 } else { setup.macs.1 },
        },
        mtu: setup.mtu(),
        checksum_offload: setup.checksum_offload,
        address: subnet.ip().into(),
        neighbours: Vec::new(),
        forwarding: Vec::new(),
    })
}

/// The udp data path's device, where udp is the backend or the fallback.
fn tun_device(setup: &HostSetup, subnet: IpNetwork) -> Option<DesiredDevice> {
    match &setup.backend {
        Backend::Udp { .. } => {}
        Backend::Vxlan(vxlan) if vxlan.fallback_port.is_some() => {}
        _ => return None,
    }
    Some(DesiredDevice {
        role: DeviceRole::Tun,
        name: DeviceRole::Tun.name(&setup.backend)?,
        kind: DeviceKind::Tun,
        mtu: setup.mtu(),
        checksum_offload: true,
        address: subnet.ip().into(),
        neighbours: Vec::new(),
        forwarding: Vec::new(),
    })
}
