//! Touches this machine: manifests, directories, mounts, cgroups, and what the machine says about itself.
//!
//! Architecture invariant: nothing here decides what should run; every path has a root that is passed in, so that a
//! test can work under a directory of its own; and no path that a pod could have influenced is followed by name.

pub mod cgroup;
pub mod dirs;
pub mod files;
pub mod iptables;
pub mod logs;
pub mod machine;
pub mod mountinfo;
pub mod mounting;
pub mod path_error;
pub mod resolv;
pub mod static_pods;
pub mod stats;
pub mod system_logs;
pub mod tree;
pub mod user_namespaces;

mod bounded;
mod watch;

pub use logs::{Writers, writers};
pub use watch::DirWatch;

#[cfg(test)]
mod testing;

pub use path_error::PathError;
