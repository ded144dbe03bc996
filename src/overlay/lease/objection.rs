//! What speaks against a lease by itself, whatever other leases there are.

use std::net::IpAddr;

use keelson_netkit::{IpNet, Mac};

use super::{Lease, Place};

/// What leases are measured by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Measure {
    pub networks: Vec<IpNet>,
    /// This host's subnets, the addresses that others reach it by, and those of its tunnel devices.
    pub own: Vec<IpNet>,
    pub addresses: Vec<IpAddr>,
    pub macs: Vec<Mac>,
    pub backend: String,
    pub vni: Option<u32>,
}

pub fn to_lease(lease: &Lease, measure: &Measure) -> Option<String> {
    // flanneld's udp backend does not say its name.
    let other = if lease.backend.is_empty() { "udp" } else { &lease.backend };
    (other != measure.backend).then(|| {
        format!(
            "{} runs {other} and this host runs {}: give all hosts of the network the same backend",
            lease.holder, measure.backend
        )
    })
}

pub fn to_place(place: &Place, measure: &Measure) -> Option<String> {
    let Place { subnet, public, vtep } = place;
    let Measure { networks, own, addresses, macs, vni, .. } = measure;
    let inside = networks.iter().any(|net| net.contains(subnet.addr) && subnet.prefix > net.prefix);
    if !inside {
        return Some(format!("its subnet {subnet} is not within the network"));
    }
    if let Some(mine) = own.iter().find(|mine| mine.overlaps(subnet)) {
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
        (Some(_), None) => Some("it runs vxlan and tells no VtepMAC".to_owned()),
        (Some(wanted), Some(vtep)) if vtep.vni != *wanted => {
            Some(format!("it is in VXLAN network {}, this host is in {wanted}", vtep.vni))
        }
        (Some(_), Some(vtep)) if macs.contains(&vtep.mac) => {
            Some(format!("its VtepMAC {} is that of this host: two hosts with one address", vtep.mac))
        }
        _ => None,
    }
}
