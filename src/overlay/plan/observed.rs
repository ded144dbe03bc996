//! The observed kernel state, as far as it concerns the overlay.

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::neigh::Entry;
use keelson_netkit::route::Route;
use keelson_netkit::vxlan::Tunnel;
use keelson_netkit::{IfIndex, Mac};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Devices with a name of ours, and VXLAN devices that could be ours under another name.
    pub devices: Vec<ObservedDevice>,
    /// The main table, of both families.
    pub routes: Vec<Route>,
    pub underlay: Option<IfIndex>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedDevice {
    pub name: String,
    pub index: IfIndex,
    /// "vxlan", "tun", ...
    pub kind: Option<String>,
    pub tunnel: Option<Tunnel>,
    pub mac: Option<Mac>,
    pub mtu: u32,
    pub up: bool,
    /// None where the driver does not report it.
    pub checksum_offload: Option<bool>,
    pub addresses: Vec<IpNetwork>,
    pub neighbours: Vec<Entry>,
    pub forwarding: Vec<Entry>,
}

impl Observed {
    pub fn device(&self, name: &str) -> Option<&ObservedDevice> {
        self.devices.iter().find(|device| device.name == name)
    }
}
