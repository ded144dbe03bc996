//! What all plugins share: the way in from environment and stdin, the way out to stdout.

mod args;
mod conf;
mod failure;
mod invocation;
mod json;
mod result;
mod run;
mod version;

pub use args::parse_args;
pub use conf::{decode, decode_readable};
pub use failure::Failure;
pub use invocation::{Attachment, Call, Command, ContainerId, Env, NetworkName, ValidAttachment};
pub use json::Json;
pub use result::{CniResult, Dns, Interface, IpConfig, Route};
pub use run::{Plugin, run};
pub use version::{CniVersion, supported_versions};
