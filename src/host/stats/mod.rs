//! What the machine as a whole uses, and what directories hold. Read when asked for; nothing runs in the background.

mod disk;
mod node;
mod process;

pub use disk::{filesystem, log_bytes, tree_usage};
pub use node::{NodeUsage, own_cgroup, processes, read_node};
pub use process::{Process, own_process};

use std::path::Path;

use keelson_core::stats::Interface;
use keelson_core::stats::usage::interfaces;

/// The interfaces in the network namespace of a process.
pub fn interfaces_of(proc: &Path, process: u32) -> Option<Vec<Interface>> {
    let text = std::fs::read_to_string(proc.join(process.to_string()).join("net/dev")).ok()?;
    Some(interfaces(&text))
}
