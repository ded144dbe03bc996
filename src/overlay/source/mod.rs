//! Where leases come from. Each source says what it knows in one [`View`], the latest replacing the one before, and goes on
//! by itself when the other side is away for a while.

pub mod etcd;
pub mod kube;
mod registration;

pub use registration::Memory;

use std::net::IpAddr;

use keelson_netkit::IpNet;

use crate::lease::Lease;

/// What a source knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// This host's own subnets, once it has them.
    pub subnets: Vec<IpNet>,
    /// The leases of all other hosts.
    pub leases: Vec<Lease>,
    /// Leases that could not be read, in words.
    pub complaints: Vec<String>,
    /// Why the source cannot be heard just now, or what it waits for.
    pub trouble: Option<String>,
    /// Addresses that an administrator set for this host at the source.
    pub overwrite4: Option<IpAddr>,
    pub overwrite6: Option<IpAddr>,
    /// Whether this was heard from the source, rather than remembered.
    pub heard: bool,
}
