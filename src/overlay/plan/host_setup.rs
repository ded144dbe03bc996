//! This host's setup, and what follows from it for each peer.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::{IfIndex, IfName, Mac};

use crate::config::Backend;
use crate::lease::{Lease, LeasedSubnet};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSetup {
    pub backend: Backend,
    pub networks: Vec<IpNetwork>,
    pub subnets: Vec<IpNetwork>,
    pub underlay: IfIndex,
    pub underlay_mtu: u32,
    /// The interface's own addresses, with the networks that are reached on it directly.
    pub underlay_nets: Vec<IpNetwork>,
    pub macs: (Mac, Mac),
    /// The interface's addresses that tunnels leave from.
    pub local4: Option<IpAddr>,
    pub local6: Option<IpAddr>,
    pub checksum_offload: bool,
}

/// Peers that are reached by udp although vxlan is configured, by holder and family (true is IPv4).
pub type FallbackPeers = BTreeSet<(Arc<str>, bool)>;

/// How one peer's subnet is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    Vxlan,
    Udp,
    Direct,
}

/// The purpose of one of our devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceRole {
    Tunnel4,
    Tunnel6,
    /// The udp data path's device, for both families.
    Tun,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedRoute {
    pub dst: IpNetwork,
    pub via: RouteVia,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteVia {
    /// Over one of our devices; the gateway exists only as a neighbour entry.
    Device { role: DeviceRole, gateway: Option<IpAddr> },
    /// To another host on the underlay.
    Underlay { gateway: IpAddr },
}

/// The kernel entries that one subnet of a peer needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelEntries {
    pub neighbour: Option<(DeviceRole, IpAddr, Mac)>,
    pub forwarding: Option<(DeviceRole, Mac, IpAddr)>,
    pub route: Option<WantedRoute>,
}

pub const TUN_NAME: &str = "flannel0";

const VXLAN_OVERHEAD: u32 = 50;
const UDP_OVERHEAD: u32 = 28;

impl DeviceRole {
    pub fn tunnel(v4: bool) -> Self {
        if v4 { DeviceRole::Tunnel4 } else { DeviceRole::Tunnel6 }
    }

    /// The device's name, as flannel names it; None where the backend has no such device.
    pub fn name(self, backend: &Backend) -> Option<IfName> {
        let name = match (self, backend) {
            (DeviceRole::Tunnel4, Backend::Vxlan(vxlan)) => format!("flannel.{}", vxlan.vni),
            (DeviceRole::Tunnel6, Backend::Vxlan(vxlan)) => format!("flannel-v6.{}", vxlan.vni),
            (DeviceRole::Tun, _) => TUN_NAME.to_owned(),
            _ => return None,
        };
        IfName::try_from(name.as_str()).ok()
    }
}

impl HostSetup {
    pub(super) fn family<'a>(
        &'a self,
        nets: &'a [IpNetwork],
        v4: bool,
    ) -> impl Iterator<Item = IpNetwork> + 'a {
        nets.iter().copied().filter(move |net| net.is_ipv4() == v4)
    }

    /// This host's subnet of a family that the network has.
    pub(super) fn subnet(&self, v4: bool) -> Option<IpNetwork> {
        self.family(&self.networks, v4).next().and(self.family(&self.subnets, v4).next())
    }

    pub(super) fn local(&self, v4: bool) -> Option<IpAddr> {
        if v4 { self.local4 } else { self.local6 }
    }

    /// What pods may send at once.
    pub fn mtu(&self) -> u32 {
        // An outer IPv6 header is twenty bytes longer. flannel does not count them, so its packets are fragmented.
        let over_v6 = self.networks.iter().any(|net| !net.is_ipv4());
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

    /// How a peer's subnet is reached, or why it is not.
    pub fn carrier(&self, leased: &LeasedSubnet, fallen_back: bool) -> Result<Carrier, String> {
        let on_link = self.underlay_nets.iter().any(|net| net.contains(leased.public));
        match &self.backend {
            Backend::Udp { .. } => Ok(Carrier::Udp),
            Backend::Vxlan(vxlan) if vxlan.direct_routing && on_link => Ok(Carrier::Direct),
            Backend::Vxlan(_) if fallen_back => Ok(Carrier::Udp),
            Backend::Vxlan(_) => Ok(Carrier::Vxlan),
            Backend::HostGw if on_link => Ok(Carrier::Direct),
            Backend::HostGw => Err(format!(
                "{} is not on the network of this host's interface, and host-gw cannot go through a router: use vxlan or udp",
                leased.public
            )),
            Backend::None => Err("this host carries nothing to others (backend none)".to_owned()),
        }
    }

    /// The reachable subnets of a peer, each with how it is reached.
    pub fn paths<'a>(
        &'a self,
        peer: &'a Lease,
        fallback_peers: &'a FallbackPeers,
    ) -> impl Iterator<Item = (LeasedSubnet, Carrier)> + 'a {
        [true, false].into_iter().filter_map(move |v4| {
            let leased = peer.leased_subnet(v4)?;
            self.subnet(v4)?;
            // Usually the set is empty; then the key need not be built.
            let fallen_back =
                !fallback_peers.is_empty() && fallback_peers.contains(&(peer.holder.clone(), v4));
            Some((leased, self.carrier(&leased, fallen_back).ok()?))
        })
    }

    /// The kernel entries of a subnet that is reached in this way.
    pub fn kernel_entries(&self, leased: &LeasedSubnet, carrier: Carrier) -> KernelEntries {
        let (v4, dst) = (leased.subnet.is_ipv4(), leased.subnet);
        // The remote VTEP has its subnet's first address.
        let far = leased.subnet.ip();
        let mut entries = KernelEntries::default();
        let is_vxlan = matches!(self.backend, Backend::Vxlan(_)) && self.local(v4).is_some();
        if let (true, Some(vtep)) = (is_vxlan, leased.vtep) {
            let role = DeviceRole::tunnel(v4);
            // Also for a peer that fell back to udp: probes of the tunnel need them to notice when it works again.
            if carrier != Carrier::Direct {
                entries.neighbour = Some((role, far, vtep.mac));
                entries.forwarding = Some((role, vtep.mac, leased.public));
            }
            entries.route = match carrier {
                Carrier::Vxlan => Some(RouteVia::Device { role, gateway: Some(far) }),
                Carrier::Udp => Some(RouteVia::Device { role: DeviceRole::Tun, gateway: None }),
                Carrier::Direct => None,
            }
            .map(|via| WantedRoute { dst, via });
        }
        if carrier == Carrier::Direct {
            entries.route = Some(WantedRoute { dst, via: RouteVia::Underlay { gateway: leased.public } });
        }
        entries
    }

    /// Routes that do not depend on the peers: for udp one for the whole network, because the data path chooses the peer.
    pub fn standing_routes(&self) -> impl Iterator<Item = WantedRoute> + '_ {
        let via = RouteVia::Device { role: DeviceRole::Tun, gateway: None };
        let nets = self.networks.iter().filter(|net| self.subnet(net.is_ipv4()).is_some());
        nets.filter(|_| matches!(self.backend, Backend::Udp { .. }))
            .map(move |dst| WantedRoute { dst: *dst, via })
    }
}
