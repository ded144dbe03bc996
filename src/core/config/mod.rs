//! Configuration: KubeletConfiguration v1beta1 text and the kubelet's flags in, effective [`Settings`] or errors out.
//!
//! Every value remembers where it came from until it is settled, so that an error about it can name file, line and
//! field. Reading the files is left to the command line; nothing here touches the machine.

mod checks;
mod credential_providers;
mod decode;
mod fields;
mod flags;
mod kubelet;
mod load;
mod names;
mod period;
mod quantity;
mod sections;
mod settings;
mod together;
mod tree;
mod words;

#[cfg(test)]
mod tests;

pub use credential_providers::{CREDENTIAL_PROVIDER_V1, CacheType, CredentialProvider, TokenAttributes};
pub use fields::{Field, Support};
pub use flags::{CONFIG_FLAGS, ConfigFlag, FlagKind};
pub use kubelet::KubeletConfiguration;
pub use load::{ConfigError, ConfigErrors, ConfigInput, ConfigText, load};
pub use period::Period;
pub use quantity::{QuantityText, Threshold};
pub use sections::*;
pub use settings::{DEFAULT_MANIFEST_DIR, DEFAULT_SOCKET, NodeFlags, Paths, Settings};
pub use tree::Origin;
pub use words::*;
