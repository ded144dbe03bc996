//! Containers' logs: what was asked for, whose log it is, which of its bytes are shown, and how a log is rotated.

pub mod attempt;
pub mod choose;
pub mod entry;
pub mod filter;
pub mod request;
pub mod rotation;

pub use attempt::{attempt_of, next_attempt};
pub use choose::choose;
pub use filter::Filter;
pub use request::{LogRequest, Refusal, Stream};

#[cfg(test)]
mod tests;
