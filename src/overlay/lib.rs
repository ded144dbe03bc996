//! The overlay: pods on different hosts reach each other, by flannel's formats, so that a network can mix hosts that run
//! flanneld with hosts that run this.
//!
//! Leases say which host holds which subnet ([`lease`]); from them follows what the kernel should hold ([`plan`]); the rest
//! of the crate brings the two together and tells how it went.
//!
//! Architecture invariant: [`config`], [`lease`] and [`plan`] are pure. They read no clock, file or socket.
//!
//! Architecture invariant: what the kernel holds is the data path. This process may be killed at any instant, and what it
//! set up goes on; it only repairs.

pub mod config;
pub mod lease;
pub mod plan;

mod board;
mod daemon;
mod engine;
mod files;
mod firewall;
mod guard;
mod kernel;
mod machine;
mod metrics;
mod monitor;
mod probe;
mod prober;
mod report;
mod run;
mod serve;
mod source;
mod state;
pub mod status;
mod underlay;

pub use run::{Hooks, RunError, run};
pub use serve::{AskError, ask};
