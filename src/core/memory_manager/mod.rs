//! Which container's memory comes from which NUMA nodes. Pure: the machine is given, and so is what was decided before.

pub mod checkpoint;
mod policy;
mod state;

pub use policy::{MemoryPolicy, Refusal};
pub use state::{Block, Machine, MemoryState, MemoryTable, NodeMemory};
