//! emptyDir: a directory that lives as long as its pod, on disk or in memory.

use std::path::Path;

use k8s_openapi::api::core::v1::Volume;
use keelson_core::resources::Amount;

use super::{Setup, VolumeError, mounting, ownership};
use crate::dirs;

pub(super) fn setup(volume: &Volume, path: &Path, with: &Setup<'_>) -> Result<(), VolumeError> {
    let source = volume.empty_dir.clone().unwrap_or_default();
    let failed = |source| VolumeError::Path { volume: volume.name.clone(), source };
    let invalid = |problem: String| VolumeError::Invalid { volume: volume.name.clone(), problem };
    dirs::make(path, 0o777).map_err(failed)?;
    match source.medium.as_deref().unwrap_or_default() {
        "" => ownership::of_directory(path, 0o777, with.fs_group).map_err(failed),
        "Memory" => {
            let limit = source.size_limit.as_ref().map(Amount::of).transpose();
            let limit = limit.map_err(|e| invalid(format!("sizeLimit: {e}")))?;
            // The volume's own limit and the pod's: the smaller one counts.
            let own = limit.and_then(|a| u64::try_from(a.value()).ok()).filter(|bytes| *bytes > 0);
            let size = [own, with.memory_limit].into_iter().flatten().min();
            mounting::ensure_tmpfs(path, size, mounting::Swap::Allowed).map_err(failed)?;
            ownership::of_directory(path, 0o1777, with.fs_group).map_err(failed)
        }
        medium => Err(invalid(format!("medium {medium:?} is not supported; \"\" and \"Memory\" are"))),
    }
}
