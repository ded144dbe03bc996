//! Speaks CRI to the container runtime: the client, the way from API types to CRI ones, and what is seen to run.
//!
//! Architecture invariant: nothing here decides what should run. Every call but a pull, a blob that is written and the event stream
//! has a deadline, so a runtime that hangs holds up whoever asked and nobody else.

pub mod containerd;
pub mod containers;
pub mod convert;
pub mod error;
pub mod events;
pub mod images;
pub mod observe;
pub mod operations;
pub mod runtime;
pub mod sandboxes;
pub mod stats;
pub mod status;
mod validate;

mod cache;
mod relist;
mod response_counter;

pub use error::{CriError, ErrorKind};
pub use events::{RuntimeChange, watch};
pub use keelson_proto::runtime::v1 as proto;
pub use observe::{PodHint, Survey, observe_all, observe_pod, survey};
pub use response_counter::ResponseCounter;
pub use runtime::{CallTracker, Runtime};
