//! What several rooms of the house need and none of them owns: one concept a file.
//!
//! Architecture invariant: this crate depends on no other crate of the workspace, and without its feature `serve` on no
//! async runtime.

pub mod backoff;
#[cfg(feature = "serve")]
pub mod blocking;
pub mod cidr;
pub mod error_chain;
pub mod hex;
#[cfg(feature = "serve")]
pub mod http_listener;
pub mod metrics;
pub mod quantity;
#[cfg(feature = "serve")]
pub mod unix_socket;
pub mod whole_file;
