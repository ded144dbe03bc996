//! Finds problems between hosts. Every peer is sent packets through the overlay, small ones and the largest that pods may
//! send. The replies decide what is reported ([`diagnose`]) and whether a peer falls back to udp ([`ProbeHistory`]).

mod answer;
mod diagnose;
mod echo;
mod history;
mod schedule;
mod sweep;

pub use answer::answer;
pub use diagnose::{ProbeResult, diagnose};
pub use history::ProbeHistory;
pub use schedule::Schedule;
pub use sweep::{ProbeTarget, sweep};
