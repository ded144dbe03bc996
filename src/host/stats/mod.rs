//! What the machine as a whole uses, and what directories hold. Read when asked for; nothing runs in the background.

mod disk;
mod node;
mod process;
mod tree_usage;

pub use disk::{filesystem, log_bytes};
pub use node::{NodeUsage, own_cgroup, processes, read_node};
pub use process::{Process, own_process};
pub use tree_usage::tree_usage;

use std::fs::File;
use std::path::Path;

use keelson_core::stats::Interface;
use keelson_core::stats::usage::interfaces;

use crate::bounded;

/// A pod with the right to it can make any number of interfaces; these are some thousands.
const MAX_INTERFACES_BYTES: u64 = 1 << 20;

/// The interfaces in the network namespace of a process.
pub fn interfaces_of(proc: &Path, process: u32) -> Option<Vec<Interface>> {
    let mut file = File::open(proc.join(process.to_string()).join("net/dev")).ok()?;
    let bytes = bounded::head(&mut file, MAX_INTERFACES_BYTES).ok()?;
    Some(interfaces(&String::from_utf8_lossy(&bytes)))
}
