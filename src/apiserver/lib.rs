//! Everything that a node writes to the apiserver and reads from it.
//!
//! One [`Api`] is one node's identity at one server. It is cheap to clone, never blocks at start, and keeps working
//! (or reports clearly why not) while the server is away. The rest of the crate is one file per conversation: the watch
//! of this node's pods, the objects those pods refer to, their tokens, status, events, the Node and its lease.
//!
//! Architecture invariant: nothing here polls. What changes is reported by a watch, and a watch that fell silent is
//! reopened. Every request stays within what the Node authorizer grants to `system:node:NAME`;
//! only [`Api::nodes`] needs more, which is the overlay's and comes with rights of its own.

mod call;
mod certificate;
mod claims;
mod client;
mod connection;
mod error;
mod events;
mod jitter;
mod lease;
mod merge_patch;
mod node;
mod nodes;
mod objects;
mod options;
mod pod_watch;
mod rate_limit;
pub mod requests;
mod reviews;
mod runtime_classes;
mod service_accounts;
mod services;
mod status;
mod tokens;
mod trust_bundles;
mod watch;

#[cfg(test)]
mod tests;

pub use client::Api;
pub use error::{ApiError, ErrorKind};
pub use events::{EventRecorder, EventType, ObjectRef};
pub use lease::{LeaseKeeper, LeaseSettings};
pub use nodes::NodeNetwork;
pub use objects::{ObjectCache, ObjectKey, ObjectKind};
pub use options::{ClientOptions, Timings};
pub use reviews::User;
pub use runtime_classes::RuntimeClassCache;
pub use services::ServiceCache;
pub use tokens::{Token, TokenCache, TokenSpec};
pub use trust_bundles::{TrustBundleCache, TrustBundleNews};
pub use watch::{Followed, Scope, Update};
