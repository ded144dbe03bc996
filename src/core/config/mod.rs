//! Configuration: KubeletConfiguration v1beta1 text and the kubelet's flags in, effective [`Settings`] or errors out.
//!
//! Every value keeps the place it came from until it is settled, so that an error about it can name file, line and
//! field. Reading the files is left to the command line; nothing here touches the machine.

mod amount;
mod checks;
mod decode;
mod fields;
mod flags;
mod kubelet;
mod load;
mod period;
mod sections;
mod settings;
mod support;
mod tree;
mod words;

#[cfg(test)]
mod tests;

pub use amount::{Amount, Threshold};
pub use flags::{CONFIG_FLAGS, ConfigFlag, FlagKind};
pub use kubelet::KubeletConfiguration;
pub use load::{ConfigError, ConfigErrors, ConfigInput, ConfigText, load};
pub use period::Period;
pub use sections::*;
pub use settings::{DEFAULT_MANIFEST_DIR, NodeFlags, Settings};
pub use support::NOT_ACTED_ON;
pub use tree::Origin;
pub use words::*;
