//! Tells what is wrong between hosts: every peer is sent packets through the overlay, small ones and the largest that pods
//! may send, and from what comes back follows what to say ([`diagnose`]) and what to do about it ([`record`]).

mod diagnose;
mod record;
mod sweep;

pub use diagnose::{Evidence, diagnose};
pub use record::{Health, Record};
pub use sweep::{Answerer, PROBE_PORT, SweepError, Target, sweep};
