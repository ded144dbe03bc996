//! Images: what their names mean, whose credentials they are pulled with, who may use one that is there, and what it means when
//! they do not come.

mod access;
mod allowlist;
mod credentials;
mod failure;
mod keyring;
mod name;
mod pull_rate;
mod records;

pub use access::{Access, AccessPolicy};
pub use allowlist::Allowlist;
pub use credentials::{Credential, DockerConfig, of_secrets};
pub(crate) use failure::image_of_volume;
pub use failure::{ImageFailure, PULL_BACK_OFF, is_failed_pull, is_image_reason, of_volume, unknown_secrets};
pub use keyring::{Coordinates, Keyring, OwnedCredential, Source, attempts, pattern_matches};
pub use name::{ImageName, check_name, full_name, without_tag};
pub use pull_rate::PullRate;
pub use records::{BadRecord, PullCredentials, PullIntent, PullSecret, PulledRecord, file_name};
