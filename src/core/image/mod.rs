//! Images: what their names mean, whose credentials they are pulled with, and what it means when they do not come.

mod credentials;
mod failure;
mod keyring;
mod name;

pub use credentials::{Credential, DockerConfig, of_secrets};
pub use failure::{ImageFailure, PULL_BACK_OFF, is_failed_pull, is_image_reason, unknown_secrets};
pub use keyring::{Coordinates, Keyring, OwnedCredential, Source, attempts, pattern_matches};
pub use name::{ImageName, check_name, without_tag};
