//! What the kernel should hold for the overlay, and what to do about the difference to what it holds. Pure.

mod actions;
mod desired;
mod observed;

#[cfg(test)]
mod tests;

pub use actions::{Action, plan};
pub use desired::{
    Carrier, Desired, Device, Kind, Situation, TUN_NAME, Unreachable, Via, WantedRoute, desired,
};
pub use observed::{FoundDevice, Observed};

/// The number by which routes of this overlay are told from other people's: `ip route show proto 75`.
pub const ROUTE_PROTOCOL: u8 = 75;
/// Routes that the kernel makes by itself, such as those of an interface's own addresses.
pub const KERNEL_PROTOCOL: u8 = 2;
