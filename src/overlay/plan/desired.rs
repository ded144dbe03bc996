//! From leases to devices, neighbours, forwarding entries and routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use keelson_netkit::vxlan::Tunnel;
use keelson_netkit::{IfIndex, IfName, IpNet, Mac};

use crate::config::{Backend, Vxlan};
use crate::lease::{Lease, Place};

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedRoute {
    pub dst: IpNet,
    pub via: Via,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Via {
    /// Over a device of ours; the gateway exists only as a neighbour there.
    Device { name: IfName, gateway: Option<IpAddr> },
    /// To another host on the interface that hosts share.
    Underlay { gateway: IpAddr },
}

/// What this host is and has, from which the rest follows.
#[derive(Debug, Clone)]
pub struct Situation<'a> {
    pub backend: &'a Backend,
    pub networks: Vec<IpNet>,
    pub subnets: Vec<IpNet>,
    pub underlay: IfIndex,
    pub underlay_mtu: u32,
    /// The interface's own addresses, with the networks that are reached on it directly.
    pub underlay_nets: Vec<IpNet>,
    pub macs: (Mac, Mac),
    /// The interface's addresses that tunnels leave from.
    pub local4: Option<IpAddr>,
    pub local6: Option<IpAddr>,
    pub checksum_offload: bool,
    /// Holders of leases that are reached by udp although vxlan is configured.
    pub fallen_back: &'a BTreeSet<String>,
}

/// How one peer's subnet is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    Vxlan,
    Udp,
    Direct,
}

/// A peer that the backend cannot reach, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    pub holder: String,
    pub why: String,
}

pub const TUN_NAME: &str = "flannel0";
const VXLAN_OVERHEAD: u32 = 50;
const UDP_OVERHEAD: u32 = 28;

impl Situation<'_> {
    fn family<'a>(&'a self, nets: &'a [IpNet], v4: bool) -> impl Iterator<Item = IpNet> + 'a {
        nets.iter().copied().filter(move |net| net.is_v4() == v4)
    }

    /// What pods may send at once.
    pub fn mtu(&self) -> u32 {
        // An outer IPv6 header is twenty bytes longer. flannel does not count them, and has its packets cut in two.
        let over_v6 = self.networks.iter().any(|net| !net.is_v4());
        let more = if over_v6 { 20 } else { 0 };
        let room = |mtu: u32, overhead: u32| mtu.saturating_sub(overhead);
        match self.backend {
            Backend::Vxlan(vxlan) => {
                let mtu = vxlan.mtu.unwrap_or(self.underlay_mtu).min(self.underlay_mtu);
                room(mtu, VXLAN_OVERHEAD + more)
            }
            Backend::Udp { .. } => room(self.underlay_mtu, UDP_OVERHEAD + more),
            Backend::HostGw | Backend::None => self.underlay_mtu,
        }
    }

    /// How a peer's place is reached, or why it is not.
    pub fn carrier(&self, holder: &str, place: &Place) -> Result<Carrier, String> {
        let on_link = self.underlay_nets.iter().any(|net| net.contains(place.public));
        match self.backend {
            Backend::Udp { .. } => Ok(Carrier::Udp),
            Backend::Vxlan(vxlan) if vxlan.direct_routing && on_link => Ok(Carrier::Direct),
            Backend::Vxlan(_) if self.fallen_back.contains(holder) => Ok(Carrier::Udp),
            Backend::Vxlan(_) => Ok(Carrier::Vxlan),
            Backend::HostGw if on_link => Ok(Carrier::Direct),
            Backend::HostGw => Err(format!(
                "{} is not on the network of this host's interface, and host-gw cannot go through a router: use vxlan or udp",
                place.public
            )),
            Backend::None => Err("this host carries nothing to others (backend none)".to_owned()),
        }
    }
}

/// Computes what should be there. Peers that cannot be reached are left out and named.
pub fn desired(situation: &Situation<'_>, peers: &[Lease]) -> (Desired, Vec<Unreachable>) {
    let mut wanted = Desired { networks: situation.networks.clone(), ..Desired::default() };
    let mut unreachable = Vec::new();
    for v4 in [true, false] {
        let (Some(_), Some(subnet)) = (
            situation.family(&situation.networks, v4).next(),
            situation.family(&situation.subnets, v4).next(),
        ) else {
            continue;
        };
        let mut tunnel = match situation.backend {
            Backend::Vxlan(vxlan) => vxlan_device(situation, vxlan, subnet),
            _ => None,
        };
        let tun = tun_device(situation, subnet);
        for peer in peers {
            let Some(place) = (if v4 { peer.v4 } else { peer.v6 }) else { continue };
            match situation.carrier(&peer.holder, &place) {
                Err(why) => unreachable.push(Unreachable { holder: peer.holder.clone(), why }),
                Ok(carrier) => add_peer(&mut wanted, tunnel.as_mut(), tun.as_ref(), &place, carrier),
            }
        }
        wanted.devices.extend(tunnel);
        if let Some(tun) = tun {
            if matches!(situation.backend, Backend::Udp { .. }) {
                // One route for all: which host gets a packet is decided where it is wrapped.
                let via = Via::Device { name: tun.name.clone(), gateway: None };
                wanted.routes.extend(
                    situation
                        .family(&situation.networks, v4)
                        .map(|dst| WantedRoute { dst, via: via.clone() }),
                );
            }
            wanted.devices.push(tun);
        }
    }
    (wanted, unreachable)
}

fn add_peer(
    wanted: &mut Desired,
    tunnel: Option<&mut Device>,
    tun: Option<&Device>,
    place: &Place,
    carrier: Carrier,
) {
    let dst = place.subnet;
    // The far end of a tunnel has its subnet's first address.
    let far = place.subnet.addr;
    if let (Some(tunnel), Some(vtep)) = (tunnel, place.vtep) {
        // Also for a peer that is reached otherwise just now: that is how it is noticed when the tunnel works again.
        if carrier != Carrier::Direct {
            tunnel.neighbours.push((far, vtep.mac));
            tunnel.forwarding.push((vtep.mac, place.public));
        }
        if carrier == Carrier::Vxlan {
            let via = Via::Device { name: tunnel.name.clone(), gateway: Some(far) };
            wanted.routes.push(WantedRoute { dst, via });
        }
    }
    match (carrier, tun) {
        (Carrier::Direct, _) => {
            wanted.routes.push(WantedRoute { dst, via: Via::Underlay { gateway: place.public } });
        }
        (Carrier::Udp, Some(tun)) if place.vtep.is_some() => {
            let via = Via::Device { name: tun.name.clone(), gateway: None };
            wanted.routes.push(WantedRoute { dst, via });
        }
        _ => {}
    }
}

fn vxlan_device(situation: &Situation<'_>, vxlan: &Vxlan, subnet: IpNet) -> Option<Device> {
    let v4 = subnet.is_v4();
    let local = if v4 { situation.local4 } else { situation.local6 }?;
    let name = if v4 { format!("flannel.{}", vxlan.vni) } else { format!("flannel-v6.{}", vxlan.vni) };
    Some(Device {
        name: IfName::try_from(name.as_str()).ok()?,
        kind: Kind::Vxlan {
            tunnel: Tunnel {
                vni: vxlan.vni,
                port: vxlan.port,
                local: Some(local),
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
fn tun_device(situation: &Situation<'_>, subnet: IpNet) -> Option<Device> {
    match situation.backend {
        Backend::Udp { .. } => {}
        Backend::Vxlan(vxlan) if vxlan.fallback_port.is_some() => {}
        _ => return None,
    }
    Some(Device {
        name: IfName::try_from(TUN_NAME).ok()?,
        kind: Kind::Tun,
        mtu: situation.mtu(),
        checksum_offload: true,
        address: IpNet::new(subnet.addr, if subnet.is_v4() { 32 } else { 128 }),
        neighbours: Vec::new(),
        forwarding: Vec::new(),
    })
}
