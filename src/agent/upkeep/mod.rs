//! What keeps a node usable over the years.

pub mod cpusets;
pub mod firewall;
pub mod log_rotation;
