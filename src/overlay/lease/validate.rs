//! Checks one lease by itself, whatever other leases there are.

use std::net::IpAddr;

use keelson_kit::cidr::{self, IpNetwork};
use keelson_netkit::Mac;

use super::{Lease, LeasedSubnet};

/// What every lease must fit: the network's settings and this host's own addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirements {
    pub networks: Vec<IpNetwork>,
    /// This host's subnets, the addresses that others reach it by, and those of its tunnel devices.
    pub own: Vec<IpNetwork>,
    pub addresses: Vec<IpAddr>,
    pub macs: Vec<Mac>,
    pub backend: String,
    pub vni: Option<u32>,
}

pub fn lease_problem(lease: &Lease, requirements: &Requirements) -> Option<String> {
    // flanneld's udp backend writes no backend type.
    let other = if lease.backend.is_empty() { "udp" } else { &lease.backend };
    (other != requirements.backend).then(|| {
        format!(
            "{} runs {other} and this host runs {}: give all hosts of the network the same backend",
            lease.holder, requirements.backend
        )
    })
}

pub fn subnet_problem(leased: &LeasedSubnet, requirements: &Requirements) -> Option<String> {
    let LeasedSubnet { subnet, public, vtep } = leased;
    let Requirements { networks, own, addresses, macs, vni, .. } = requirements;
    let inside = networks.iter().any(|net| net.contains(subnet.ip()) && subnet.prefix() > net.prefix());
    if !inside {
        return Some(format!("its subnet {subnet} is not within the network"));
    }
    if let Some(mine) = own.iter().find(|mine| cidr::overlap(**mine, *subnet)) {
        return Some(format!(
            "its subnet {subnet} overlaps this host's own, {mine}: two hosts with one subnet; give one of them another"
        ));
    }
    if addresses.contains(public) {
        return Some(format!(
            "its public address {public} is this host's own: two hosts cannot share it; set --public-ip on one"
        ));
    }
    if networks.iter().any(|net| net.contains(*public)) {
        return Some(format!("its public address {public} lies within the pod network"));
    }
    match (vni, vtep) {
        (Some(_), None) => Some("it runs vxlan and publishes no VtepMAC".to_owned()),
        (Some(wanted), Some(vtep)) if vtep.vni != *wanted => {
            Some(format!("it is in VXLAN network {}, this host is in {wanted}", vtep.vni))
        }
        (Some(_), Some(vtep)) if macs.contains(&vtep.mac) => {
            Some(format!("its VtepMAC {} is that of this host: two hosts with one address", vtep.mac))
        }
        _ => None,
    }
}
