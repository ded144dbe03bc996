//! What a pod's volumes hold and where its containers see them. Writing and mounting happens elsewhere.

mod mounts;
mod payload;
mod sources;
#[cfg(test)]
mod tests;

pub(crate) use mounts::recursive_read_only;
pub use mounts::{ContainerMount, MountError, MountInput, Propagation, mounts};
pub use payload::{
    Payload, PayloadFile, TokenRequestSpec, VolumeError, VolumeInput, VolumeProblem, payload, token_requests,
};
pub use sources::sources;
