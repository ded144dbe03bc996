//! What a node's pods use: measured values, and the shape in which /stats/summary shows them.

pub mod cadvisor;
pub mod rate;
pub mod report;
pub mod resource;
pub mod summary;
pub mod usage;

pub use rate::Rates;
pub use usage::{Filesystem, Interface, Pressure, Pressures, Usage};

#[cfg(test)]
mod tests;
