//! What the kernel should hold for the overlay, and what to do about the difference to what it holds. Pure.

mod actions;
mod concern;
mod desired;
mod follow;
mod observed;
mod situation;

#[cfg(test)]
mod tests;

pub use actions::{Action, plan};
pub use concern::Claim;
pub use desired::{Desired, Device, Kind, desired};
pub use follow::{Ground, follow};
pub use observed::{FoundDevice, Observed};
pub use situation::{Carrier, Fallen, Role, Share, Situation, TUN_NAME, Via, WantedRoute};

/// The number by which routes of this overlay are told from other people's: `ip route show proto 75`.
pub const ROUTE_PROTOCOL: u8 = 75;
/// Routes that the kernel makes by itself, such as those of an interface's own addresses.
pub const KERNEL_PROTOCOL: u8 = 2;
