//! Tells what is wrong between hosts: every peer is sent packets through the overlay, small ones and the largest that pods
//! may send, and from what comes back follows what to say ([`diagnose`]) and what to do about it ([`Record`]).

mod answer;
mod diagnose;
mod echo;
mod record;
mod schedule;
mod sweep;

pub use answer::answer;
pub use diagnose::{Evidence, diagnose};
pub use record::Record;
pub use schedule::Schedule;
pub use sweep::{Target, sweep};
