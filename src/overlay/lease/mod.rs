//! Leases: which host holds which subnet, and how it is reached. Pure. What others wrote is checked when it is read.

mod etcd_format;
#[cfg(test)]
mod hostile_tests;
mod index;
mod kube_format;
mod lease_entry;
mod lease_table;
mod validate;

pub use etcd_format::{LeaseValue, parse_key, subnet_key};
pub use kube_format::{Annotations, PrefixError};
pub use lease_table::{LeaseTable, LeaseUpdate, PeerChange, ReportedLease};
pub use validate::Requirements;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::Mac;
use serde::{Deserialize, Serialize};

/// One host's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it: the node's name, or the key in etcd.
    pub holder: Arc<str>,
    /// flannel's name of the backend: "vxlan", "udp", ...
    pub backend: Cow<'static, str>,
    pub v4: Option<LeasedSubnet>,
    pub v6: Option<LeasedSubnet>,
}

/// A subnet of a lease and how it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeasedSubnet {
    pub subnet: IpNetwork,
    /// The address that other hosts send to.
    pub public: IpAddr,
    pub vtep: Option<Vtep>,
}

/// A VXLAN tunnel end point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vtep {
    pub vni: u32,
    pub mac: Mac,
}

impl Lease {
    pub fn leased_subnets(&self) -> impl Iterator<Item = &LeasedSubnet> {
        self.v4.iter().chain(self.v6.iter())
    }

    pub fn new(holder: &str, backend: &str, v4: Option<LeasedSubnet>, v6: Option<LeasedSubnet>) -> Self {
        Lease { holder: holder.into(), backend: backend_name(backend), v4, v6 }
    }

    pub fn leased_subnet(&self, v4: bool) -> Option<LeasedSubnet> {
        if v4 { self.v4 } else { self.v6 }
    }

    pub fn subnets(&self) -> impl Iterator<Item = IpNetwork> + '_ {
        self.leased_subnets().map(|leased| leased.subnet)
    }
}

/// The name of a backend. Thousands of leases have one of three, which need not be stored with each.
fn backend_name(text: &str) -> Cow<'static, str> {
    const USUAL: [&str; 4] = ["", "vxlan", "udp", "host-gw"];
    match USUAL.into_iter().find(|usual| *usual == text) {
        Some(usual) => Cow::Borrowed(usual),
        None => Cow::Owned(text.to_owned()),
    }
}

/// What this host publishes about itself, next to its subnets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnAttributes {
    pub backend: String,
    pub public4: Option<IpAddr>,
    pub public6: Option<IpAddr>,
    pub vtep4: Option<Vtep>,
    pub vtep6: Option<Vtep>,
}

/// A VTEP as flannel writes it into backend data.
#[derive(Debug, Serialize, Deserialize)]
struct VtepJson {
    #[serde(rename = "VNI")]
    vni: u32,
    #[serde(rename = "VtepMAC")]
    mac: String,
}

impl Vtep {
    /// From backend data; None where there is none, which is JSON's null or nothing at all.
    fn read(data: &serde_json::Value) -> Result<Option<Self>, String> {
        if data.is_null() {
            return Ok(None);
        }
        let written: VtepJson = serde_json::from_value(data.clone())
            .map_err(|e| format!("its backend data is not {{\"VNI\", \"VtepMAC\"}}: {e}"))?;
        let mac: Mac = written.mac.parse().map_err(|e| format!("its VtepMAC {e}"))?;
        // The lowest bit marks multicast addresses: frames to one would be flooded, or dropped.
        if mac == Mac::ZERO || mac.0[0] & 1 == 1 {
            return Err(format!("its VtepMAC {mac} is not the address of one device"));
        }
        Ok(Some(Vtep { vni: written.vni, mac }))
    }

    fn write(&self) -> serde_json::Value {
        serde_json::json!({"VNI": self.vni, "VtepMAC": self.mac.to_string()})
    }
}

/// An address that one host can have and others can send to.
fn public_address(text: &str, v4: bool) -> Result<IpAddr, String> {
    let addr: IpAddr = text.parse().map_err(|_| format!("its public address {text:?} is no IP address"))?;
    let odd = match addr {
        IpAddr::V4(a) => a.is_broadcast() || a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    };
    if addr.is_ipv4() != v4 {
        return Err(format!("its public address {addr} is of the other family"));
    }
    if odd || addr.is_unspecified() || addr.is_loopback() || addr.is_multicast() {
        return Err(format!("its public address {addr} is not one that a host is reached by"));
    }
    Ok(addr)
}
