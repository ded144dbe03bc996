//! From leases to devices, neighbours, forwarding entries and routes.

use std::net::IpAddr;

use keelson_netkit::vxlan::Tunnel;
use keelson_netkit::{IfName, IpNet, Mac};

use super::situation::{Fallen, Role, Share, Situation, WantedRoute};
use crate::config::{Backend, Vxlan};
use crate::lease::Lease;

/// Everything that should be there, and nothing else of ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    pub devices: Vec<Device>,
    pub routes: Vec<WantedRoute>,
    /// Within these, routes over our devices are ours.
    pub networks: Vec<IpNet>,
    /// Devices that an earlier configuration needed; they go once nothing leads over them any more.
    pub retired: Vec<IfName>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub role: Role,
    pub name: IfName,
    pub kind: Kind,
    pub mtu: u32,
    /// Whether checksums may be left to the hardware; where that is broken, packets other than ICMP vanish.
    pub checksum_offload: bool,
    /// Only a source for what this host itself sends to pods elsewhere, so it has no network around it.
    pub address: IpNet,
    pub neighbours: Vec<(IpAddr, Mac)>,
    pub forwarding: Vec<(Mac, IpAddr)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Vxlan {
        tunnel: Tunnel,
        mac: Mac,
    },
    /// Made and served by the udp data path; here it only gets its address and routes.
    Tun,
}

/// Computes what should be there. Peers that cannot be reached are left out.
pub fn desired(situation: &Situation, peers: impl Iterator<Item = Lease>, fallen: &Fallen) -> Desired {
    let mut wanted = Desired { networks: situation.networks.clone(), ..Desired::default() };
    for v4 in [true, false] {
        let Some(subnet) = situation.subnet(v4) else { continue };
        if let Backend::Vxlan(vxlan) = &situation.backend {
            wanted.devices.extend(vxlan_device(situation, vxlan, subnet));
        }
        wanted.devices.extend(tun_device(situation, subnet));
    }
    wanted.routes.extend(situation.standing_routes());
    for peer in peers {
        for (place, carrier) in situation.ways(&peer, fallen) {
            add(&mut wanted, situation.share(&place, carrier));
        }
    }
    wanted
}

fn add(wanted: &mut Desired, share: Share) {
    let Share { neighbour, forwarding, route } = share;
    for device in &mut wanted.devices {
        device.neighbours.extend(neighbour.filter(|n| n.0 == device.role).map(|(_, addr, mac)| (addr, mac)));
        device.forwarding.extend(forwarding.filter(|f| f.0 == device.role).map(|(_, mac, to)| (mac, to)));
    }
    wanted.routes.extend(route);
}

fn vxlan_device(situation: &Situation, vxlan: &Vxlan, subnet: IpNet) -> Option<Device> {
    let v4 = subnet.is_v4();
    let role = Role::tunnel(v4);
    Some(Device {
        role,
        name: role.name(&situation.backend)?,
        kind: Kind::Vxlan {
            tunnel: Tunnel {
                vni: vxlan.vni,
                port: vxlan.port,
                local: Some(situation.local(v4)?),
                underlay: Some(situation.underlay),
                learning: vxlan.learning,
                group_policy: vxlan.group_policy,
            },
            mac: if v4 { situation.macs.0 } else { situation.macs.1 },
        },
        mtu: situation.mtu(),
        checksum_offload: situation.checksum_offload,
        address: IpNet::new(subnet.addr, if v4 { 32 } else { 128 }),
        neighbours: Vec::new(),
        forwarding: Vec::new(),
    })
}

/// The device of the udp data path, where it is the backend or may have to stand in for vxlan.
fn tun_device(situation: &Situation, subnet: IpNet) -> Option<Device> {
    match &situation.backend {
        Backend::Udp { .. } => {}
        Backend::Vxlan(vxlan) if vxlan.fallback_port.is_some() => {}
        _ => return None,
    }
    Some(Device {
        role: Role::Tun,
        name: Role::Tun.name(&situation.backend)?,
        kind: Kind::Tun,
        mtu: situation.mtu(),
        checksum_offload: true,
        address: IpNet::new(subnet.addr, if subnet.is_v4() { 32 } else { 128 }),
        neighbours: Vec::new(),
        forwarding: Vec::new(),
    })
}
