//! Everything that the agent says to the apiserver and hears from it.
//!
//! One [`Api`] is one node's identity at one server. It is cheap to clone, never blocks at start, and keeps working
//! (or says clearly why not) while the server is away. The rest of the crate is one file per conversation: the watch
//! of this node's pods, the objects those pods refer to, their tokens, status, events, the Node and its lease.
//!
//! Architecture invariant: nothing here polls. What changes is heard from a watch, and a watch that fell silent is
//! reopened. Every request stays within what the Node authorizer grants to `system:node:NAME`;
//! only [`Api::nodes`] needs more, which is the overlay's and comes with rights of its own.

mod certificate;
mod client;
mod connection;
mod correlate;
mod error;
mod events;
mod follow;
mod lease;
mod lines;
mod merge_patch;
mod node;
mod nodes;
mod objects;
mod pace;
mod pod_watch;
pub mod requests;
mod reviews;
mod services;
mod status;
mod tokens;
mod watch_line;

#[cfg(test)]
mod tests;

pub use client::{Api, ClientOptions, Timings};
pub use error::{ApiError, ErrorKind};
pub use events::{EventRecorder, EventType, ObjectRef};
pub use lease::{LeaseKeeper, LeaseSettings};
pub use node::RegisteredNode;
pub use nodes::{NodeEvent, NodeFacts};
pub use objects::{ObjectCache, ObjectKey, ObjectKind};
pub use pod_watch::PodEvent;
pub use reviews::User;
pub use services::{RuntimeClassCache, ServiceCache};
pub use tokens::{Token, TokenCache, TokenSpec};
