//! The overlay: pods on different hosts reach each other, by flannel's formats, so that a network can mix hosts that run
//! flanneld with hosts that run this.
//!
//! Leases say which host holds which subnet ([`lease`]). From them follows what the kernel should hold ([`plan`]). The rest
//! of the crate reconciles the two and reports the result.
//!
//! Architecture invariant: [`config`], [`lease`] and [`plan`] are pure. They read no clock, file or socket.
//!
//! Architecture invariant: what the kernel holds is the data path. This process may be killed at any instant, and what it
//! set up goes on; it only repairs.

pub mod config;
mod lease;
mod plan;

mod daemon;
mod engine;
mod files;
mod firewall;
mod kernel;
mod kernel_changes;
mod machine;
mod metrics;
mod network;
mod node_conditions;
mod peer_filter;
mod probe;
mod probe_results;
mod prober;
mod random;
mod run;
mod saved_state;
mod serve;
mod shared_state;
mod source;
pub mod status;
mod status_report;
mod underlay;

pub use run::{Hooks, RunError, run};
pub use serve::{AskError, ask};
