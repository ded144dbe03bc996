//! What a pod's volumes need and hold, which of them need attention, and where its containers see them. Writing and
//! mounting happens elsewhere.

mod claim;
mod fs_group;
mod medium;
mod mounts;
mod needs;
mod payload;
mod place;
mod plan;
mod sources;
#[cfg(test)]
mod tests;
mod trust_bundle;

pub use claim::{Backing, ClaimRef, ClaimedVolume, claimed_volume};
pub use fs_group::{ChangePolicy, FsGroup, Owned, OwnedKind, OwnershipChange, WalkReports};
pub use medium::{Medium, medium};
pub(crate) use mounts::recursive_read_only;
pub use mounts::{ContainerMount, MountError, MountInput, MountSource, Propagation, mounts};
pub use needs::{Change, Needs, TokenNeed};
pub use payload::{
    MAX_PAYLOAD_BYTES, Payload, PayloadFile, VolumeError, VolumeInput, VolumeProblem, payload,
};
pub use place::{ImagePart, VolumeImage, VolumePlace, check_mounts_images};
pub use plan::{PodVolumes, VolumeOutcome, VolumePlan, VolumesState};
pub use sources::sources;
pub use trust_bundle::{TrustBundle, TrustBundleProblem};
