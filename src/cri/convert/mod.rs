//! From the API's types to requests to the runtime. Pure: whatever has to be looked up is in the input.

pub mod labels;

mod container;
mod linux;
mod profiles;
mod sandbox;
mod security;
mod signal;

#[cfg(test)]
mod tests;

pub use container::{ContainerInput, Device, ImageUser, Mount, MountedImage, Propagation, container_config};
pub use linux::linux_resources;
pub use sandbox::{SandboxInput, sandbox_config};

/// Why a pod cannot be described to the runtime. Its author has to change it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    #[error(
        "seccompProfile.localhostProfile {0:?} must be a relative path that stays in the node's seccomp directory"
    )]
    SeccompPath(String),
    #[error("{field} is {value:?}, which is none of {known}")]
    UnknownValue { field: &'static str, value: String, known: &'static str },
    #[error("appArmorProfile of type Localhost must name a profile in localhostProfile")]
    AppArmorName,
    #[error("lifecycle.stopSignal {0:?} is not the name of a signal such as SIGTERM")]
    Signal(String),
    #[error("hostUsers is false, but no user namespace was assigned to the pod")]
    NoUserNamespace,
}
