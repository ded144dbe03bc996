//! Puts a pod's volumes where its containers can be given them, keeps what they show up to date, and takes them away
//! again.
//!
//! Every kind of volume is a [`VolumePlugin`] in a file of its own, and joins in [`VolumeManager::new`]. What a kind
//! needs and shows, and which volume needs attention when, is decided in `keelson_core::volumes`.
//!
//! Architecture invariant: all of it is idempotent. After a crash at any point the same call finishes the work, and what
//! an earlier agent or a kubelet left is found on disk, not in a file of ours.

mod atomic;
mod claim;
mod config_map;
mod downward_api;
mod empty_dir;
mod error;
mod host_path;
mod image;
mod local;
mod manager;
mod ownership;
mod plugin;
mod projected;
mod secret;
mod stats;
pub mod subpath;
mod teardown;
mod written;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use error::{TeardownError, VolumeError};
pub use manager::{Gather, VolumeManager};
pub use plugin::{
    Gathered, Mounted, NoProgress, PodSetup, Prepare, Prepared, Progress, VolumeFuture, VolumePlugin,
};
pub use stats::{Measure, VolumeStats};
