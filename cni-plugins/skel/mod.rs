//! What all plugins share: the way in from environment and stdin, the way out to stdout.

mod args;
mod conf;
mod failure;
mod invocation;
mod result;
mod run;
mod version;

pub use args::parse_args;
pub use conf::decode;
pub use failure::Failure;
pub use invocation::{Attachment, Call, Command, ContainerId, Env, NetworkName, ValidAttachment};
pub use result::{CniResult, Dns, Interface, IpConfig, Route};
pub use run::{Plugin, run};
pub use version::{CniVersion, supported_versions};
