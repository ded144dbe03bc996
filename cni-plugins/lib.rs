//! CNI plugins: bridge, host-local, loopback and portmap, in one executable with many names.
//!
//! A plugin's whole run is one call of [`skel::run`] with its environment, stdin and stdout handed in.
//! Each plugin has a planning half of pure functions (what links, addresses, routes and rules should be)
//! and a thin executing half that asks the kernel for them through keelson-netkit.
//!
//! Architecture invariant: nothing here knows the agent. Container runtimes run these plugins as they run
//! anyone's, and the files and results are those of the reference plugins, so that either can take over.

pub mod bridge;
pub mod delegate;
pub mod host_local;
pub mod iptables;
pub mod loopback;
pub mod owned;
pub mod owner;
pub mod portmap;
pub mod skel;

use skel::Plugin;

/// The plugins in this executable, by the name they are called by.
pub fn plugin(name: &str) -> Option<&'static dyn Plugin> {
    match name {
        "bridge" => Some(&bridge::Bridge),
        "host-local" => Some(&host_local::HostLocal),
        "loopback" => Some(&loopback::Loopback),
        "portmap" => Some(&portmap::Portmap),
        _ => None,
    }
}

/// The names that [`plugin`] knows.
pub const NAMES: [&str; 4] = ["bridge", "host-local", "loopback", "portmap"];
