//! What this host is and has, and what follows from that for each peer.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use keelson_netkit::{IfIndex, IfName, IpNet, Mac};

use crate::config::Backend;
use crate::lease::{Lease, Place};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Situation {
    pub backend: Backend,
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
}

/// Holders of leases that are reached by udp although vxlan is configured, by family (true is IPv4).
pub type Fallen = BTreeSet<(Arc<str>, bool)>;

/// How one peer's subnet is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    Vxlan,
    Udp,
    Direct,
}

/// A device of ours, by what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Tunnel4,
    Tunnel6,
    /// Of the udp data path; it carries both families.
    Tun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedRoute {
    pub dst: IpNet,
    pub via: Via,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// Over a device of ours; the gateway exists only as a neighbour there.
    Device { role: Role, gateway: Option<IpAddr> },
    /// To another host on the interface that hosts share.
    Underlay { gateway: IpAddr },
}

/// What one peer's place needs in the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    pub neighbour: Option<(Role, IpAddr, Mac)>,
    pub forwarding: Option<(Role, Mac, IpAddr)>,
    pub route: Option<WantedRoute>,
}

pub const TUN_NAME: &str = "flannel0";

const VXLAN_OVERHEAD: u32 = 50;
const UDP_OVERHEAD: u32 = 28;

impl Role {
    pub fn tunnel(v4: bool) -> Self {
        if v4 { Role::Tunnel4 } else { Role::Tunnel6 }
    }

    /// The device's name, which flannel gave it; None where there is no such device.
    pub fn name(self, backend: &Backend) -> Option<IfName> {
        let name = match (self, backend) {
            (Role::Tunnel4, Backend::Vxlan(vxlan)) => format!("flannel.{}", vxlan.vni),
            (Role::Tunnel6, Backend::Vxlan(vxlan)) => format!("flannel-v6.{}", vxlan.vni),
            (Role::Tun, _) => TUN_NAME.to_owned(),
            _ => return None,
        };
        IfName::try_from(name.as_str()).ok()
    }
}

impl Situation {
    pub(super) fn family<'a>(&'a self, nets: &'a [IpNet], v4: bool) -> impl Iterator<Item = IpNet> + 'a {
        nets.iter().copied().filter(move |net| net.is_v4() == v4)
    }

    /// This host's subnet of a family that the network has.
    pub(super) fn subnet(&self, v4: bool) -> Option<IpNet> {
        self.family(&self.networks, v4).next().and(self.family(&self.subnets, v4).next())
    }

    pub(super) fn local(&self, v4: bool) -> Option<IpAddr> {
        if v4 { self.local4 } else { self.local6 }
    }

    /// What pods may send at once.
    pub fn mtu(&self) -> u32 {
        // An outer IPv6 header is twenty bytes longer. flannel does not count them, and has its packets cut in two.
        let over_v6 = self.networks.iter().any(|net| !net.is_v4());
        let more = if over_v6 { 20 } else { 0 };
        let room = |mtu: u32, overhead: u32| mtu.saturating_sub(overhead);
        match &self.backend {
            Backend::Vxlan(vxlan) => {
                let mtu = vxlan.mtu.unwrap_or(self.underlay_mtu).min(self.underlay_mtu);
                room(mtu, VXLAN_OVERHEAD + more)
            }
            Backend::Udp { .. } => room(self.underlay_mtu, UDP_OVERHEAD + more),
            Backend::HostGw | Backend::None => self.underlay_mtu,
        }
    }

    /// How a peer's place is reached, or why it is not.
    pub fn carrier(&self, place: &Place, fallen_back: bool) -> Result<Carrier, String> {
        let on_link = self.underlay_nets.iter().any(|net| net.contains(place.public));
        match &self.backend {
            Backend::Udp { .. } => Ok(Carrier::Udp),
            Backend::Vxlan(vxlan) if vxlan.direct_routing && on_link => Ok(Carrier::Direct),
            Backend::Vxlan(_) if fallen_back => Ok(Carrier::Udp),
            Backend::Vxlan(_) => Ok(Carrier::Vxlan),
            Backend::HostGw if on_link => Ok(Carrier::Direct),
            Backend::HostGw => Err(format!(
                "{} is not on the network of this host's interface, and host-gw cannot go through a router: use vxlan or udp",
                place.public
            )),
            Backend::None => Err("this host carries nothing to others (backend none)".to_owned()),
        }
    }

    /// The places of a peer that are reached, each with how.
    pub fn ways<'a>(
        &'a self,
        peer: &'a Lease,
        fallen: &'a Fallen,
    ) -> impl Iterator<Item = (Place, Carrier)> + 'a {
        [true, false].into_iter().filter_map(move |v4| {
            let place = peer.place(v4)?;
            self.subnet(v4)?;
            // Nobody fell back as a rule; then nobody has to be looked up.
            let fallen_back = !fallen.is_empty() && fallen.contains(&(peer.holder.clone(), v4));
            Some((place, self.carrier(&place, fallen_back).ok()?))
        })
    }

    /// What a place that is reached in this way needs.
    pub fn share(&self, place: &Place, carrier: Carrier) -> Share {
        let (v4, dst) = (place.subnet.is_v4(), place.subnet);
        // The far end of a tunnel has its subnet's first address.
        let far = place.subnet.addr;
        let mut share = Share::default();
        let is_vxlan = matches!(self.backend, Backend::Vxlan(_)) && self.local(v4).is_some();
        if let (true, Some(vtep)) = (is_vxlan, place.vtep) {
            let role = Role::tunnel(v4);
            // Also for a peer that is reached otherwise just now: that is how it is noticed when the tunnel works again.
            if carrier != Carrier::Direct {
                share.neighbour = Some((role, far, vtep.mac));
                share.forwarding = Some((role, vtep.mac, place.public));
            }
            share.route = match carrier {
                Carrier::Vxlan => Some(Via::Device { role, gateway: Some(far) }),
                Carrier::Udp => Some(Via::Device { role: Role::Tun, gateway: None }),
                Carrier::Direct => None,
            }
            .map(|via| WantedRoute { dst, via });
        }
        if carrier == Carrier::Direct {
            share.route = Some(WantedRoute { dst, via: Via::Underlay { gateway: place.public } });
        }
        share
    }

    /// Routes that are there whoever the peers are: for udp one for all, because which host gets a packet is decided where
    /// it is wrapped.
    pub fn standing_routes(&self) -> impl Iterator<Item = WantedRoute> + '_ {
        let via = Via::Device { role: Role::Tun, gateway: None };
        let nets = self.networks.iter().filter(|net| self.subnet(net.is_v4()).is_some());
        nets.filter(|_| matches!(self.backend, Backend::Udp { .. }))
            .map(move |dst| WantedRoute { dst: *dst, via })
    }
}
