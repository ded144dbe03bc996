//! The loops that keep a node as it should be: sources in, workers for pods, the node's own object.
//!
//! Architecture invariant: nothing here decides what should happen to a pod. That is `keelson_core::plan`; this crate
//! gathers what it needs, does what it says, and observes again.

mod allocations;
mod images;
mod managers;
mod node;
mod pods;
mod probe;
pub mod registry;
pub mod report;
mod run;
mod upkeep;
mod user_namespaces;
mod worker;

pub use node::pulse;
pub use report::handle::NodeHandle;
pub use run::{AgentError, Hooks, run};
