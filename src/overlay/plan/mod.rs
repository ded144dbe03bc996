//! Computes what the kernel should hold for the overlay, and the actions that get it there. Pure.

mod actions;
mod change_filter;
mod desired;
mod host_setup;
mod kernel_links;
mod lease_changes;
mod observed;

#[cfg(test)]
mod tests;

pub use actions::{KernelAction, plan};
pub use change_filter::ChangeFilter;
pub use desired::{Desired, DeviceKind, desired};
pub use host_setup::{Carrier, DeviceRole, FallbackPeers, HostSetup, TUN_NAME};
pub use kernel_links::KernelLinks;
pub use lease_changes::plan_lease_changes;
pub use observed::{Observed, ObservedDevice};

/// The route protocol that marks this overlay's routes: `ip route show proto 75`.
pub const ROUTE_PROTOCOL: u8 = 75;
/// Routes that the kernel adds by itself, such as those of an interface's own addresses.
pub const KERNEL_PROTOCOL: u8 = 2;
