//! The loops that keep a node as it should be: sources in, workers for pods, the node's own object.
//!
//! Architecture invariant: nothing here decides what should happen to a pod. That is `keelson_core::plan`; this crate
//! gathers what it needs, does what it says, and looks again.

mod admission;
mod context;
mod desired_store;
mod exposition;
mod grpc_health;
mod handle;
mod handler;
mod images;
mod insecure_tls;
pub mod inventory;
mod log_rotation;
pub mod logs;
mod machine;
pub mod metrics;
mod mirror;
mod node_loop;
mod orphans;
mod pod_loop;
mod prober;
pub mod pulse;
mod run;
pub mod stats;
mod status_writer;
mod supervisor;
pub mod view;
mod worker;

pub use handle::NodeHandle;
pub use run::{AgentError, Hooks, run};
