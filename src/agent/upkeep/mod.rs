//! What keeps a node usable over the years.

pub mod log_rotation;
