//! Stand-ins on the wire, for faults that real parts will not produce when asked.

pub mod api;
pub mod cri;
