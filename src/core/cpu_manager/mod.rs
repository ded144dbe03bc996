//! Which container runs on which CPUs. Pure: the machine is given, and so is what was decided before.

pub mod checkpoint;
mod evenly;
mod policy;
mod take;
#[cfg(test)]
mod tests;
mod topology;

pub use policy::{Assignments, Options, Refusal, StaticPolicy, exclusive_cpus};
pub use take::NotEnough;
pub use topology::{CpuPlace, Part, Topology};
