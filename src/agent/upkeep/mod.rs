//! What keeps a node usable over the years.

pub mod firewall;
pub mod log_rotation;
