//! Images: what their names mean, whose credentials they are pulled with, and what it means when they do not come.

mod credentials;
mod failure;
mod name;

pub use credentials::{Credential, credentials};
pub(crate) use failure::image_of_volume;
pub use failure::{ImageFailure, PULL_BACK_OFF, is_failed_pull, is_image_reason, of_volume, unknown_secrets};
pub use name::{ImageName, check_name};
