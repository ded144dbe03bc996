//! Puts a pod's volumes where its containers can be given them, and takes them away again.
//!
//! Every kind of volume is a variant of [`VolumeKind`] and a file beside this one; a new kind joins in [`kind_of`] and
//! [`setup`]. All of it is idempotent: after a crash at any point the same call finishes the work.

mod atomic;
mod empty_dir;
mod host_path;
mod mounting;
mod ownership;
pub mod subpath;

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Pod, Volume};
use keelson_core::volumes::Payload;

use crate::dirs::{self, PodDirs};
use crate::mountinfo;
use crate::path_error::PathError;

/// The kinds that this agent can set up, told apart by which field of a Volume is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeKind {
    EmptyDir,
    HostPath,
    ConfigMap,
    Secret,
    DownwardApi,
    Projected,
}

/// What a set-up needs besides the volume itself.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    pub dirs: &'a PodDirs,
    /// The files of a configMap, secret, downwardAPI or projected volume.
    pub payload: Option<&'a Payload>,
    /// The pod's fsGroup. Its change policy has no say here: it is about volumes that outlive a pod.
    pub fs_group: Option<u32>,
    /// What volumes in memory may take at most, such as the pod's memory limit.
    pub memory_limit: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("volume {volume:?} is of kind {kind}, which this agent does not support")]
    Unsupported { volume: String, kind: String },
    #[error(
        "volume {volume:?} is of kind gitRepo, which is refused because it runs commands on the host; clone in an init container into an emptyDir instead"
    )]
    GitRepo { volume: String },
    #[error("volume {volume:?} names no source")]
    NoSource { volume: String },
    #[error("volume {volume:?} of kind {kind:?} was given no content to write")]
    NoPayload { volume: String, kind: VolumeKind },
    #[error("volume {volume:?}: {problem}")]
    Invalid { volume: String, problem: String },
    #[error("hostPath volume {volume:?}: {problem}")]
    HostPath { volume: String, problem: String },
    #[error("volume {volume:?}: {source}")]
    Path { volume: String, source: PathError },
}

/// Everything that a teardown could not take away.
#[derive(Debug, thiserror::Error)]
#[error("pod {uid}: {}", list(failures))]
pub struct TeardownError {
    pub uid: String,
    pub failures: Vec<PathError>,
}

fn list(failures: &[PathError]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl VolumeKind {
    /// The name of its directory, as on disk everywhere.
    pub fn plugin(self) -> &'static str {
        match self {
            Self::EmptyDir => "kubernetes.io~empty-dir",
            Self::HostPath => "kubernetes.io~host-path",
            Self::ConfigMap => "kubernetes.io~configmap",
            Self::Secret => "kubernetes.io~secret",
            Self::DownwardApi => "kubernetes.io~downward-api",
            Self::Projected => "kubernetes.io~projected",
        }
    }

    /// True when the agent writes the volume's files.
    pub fn needs_payload(self) -> bool {
        !matches!(self, Self::EmptyDir | Self::HostPath)
    }

    /// Secrets must not reach a disk; what is mixed with them neither.
    fn in_memory(self) -> bool {
        matches!(self, Self::Secret | Self::DownwardApi | Self::Projected)
    }
}

/// Which kind a volume is, or why it cannot be set up.
pub fn kind_of(volume: &Volume) -> Result<VolumeKind, VolumeError> {
    let kinds = [
        (volume.empty_dir.is_some(), VolumeKind::EmptyDir),
        (volume.host_path.is_some(), VolumeKind::HostPath),
        (volume.config_map.is_some(), VolumeKind::ConfigMap),
        (volume.secret.is_some(), VolumeKind::Secret),
        (volume.downward_api.is_some(), VolumeKind::DownwardApi),
        (volume.projected.is_some(), VolumeKind::Projected),
    ];
    if let Some((_, kind)) = kinds.into_iter().find(|(set, _)| *set) {
        return Ok(kind);
    }
    let name = volume.name.clone();
    if volume.git_repo.is_some() {
        return Err(VolumeError::GitRepo { volume: name });
    }
    Err(match keelson_core::volumes::sources(volume).into_iter().next() {
        Some(kind) => VolumeError::Unsupported { volume: name, kind },
        None => VolumeError::NoSource { volume: name },
    })
}

/// The fsGroup of a pod.
pub fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.as_ref()?.security_context.as_ref()?.fs_group?;
    u32::try_from(group).ok()
}

/// Sets a volume up, or brings its content up to date, and returns where it lies on the host.
pub fn setup(volume: &Volume, with: &Setup<'_>) -> Result<PathBuf, VolumeError> {
    let kind = kind_of(volume)?;
    // The name becomes part of a path, and not every source of pods has checked it.
    let bad = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '.';
    if volume.name.is_empty() || volume.name.starts_with('.') || volume.name.contains(bad) {
        return Err(VolumeError::Invalid {
            volume: volume.name.clone(),
            problem: "its name is not a DNS label".into(),
        });
    }
    let path = with.dirs.volume(kind.plugin(), &volume.name);
    let failed = |source| VolumeError::Path { volume: volume.name.clone(), source };
    match kind {
        VolumeKind::EmptyDir => empty_dir::setup(volume, &path, with)?,
        VolumeKind::HostPath => return host_path::check(volume),
        VolumeKind::ConfigMap | VolumeKind::Secret | VolumeKind::DownwardApi | VolumeKind::Projected => {
            let payload =
                with.payload.ok_or_else(|| VolumeError::NoPayload { volume: volume.name.clone(), kind })?;
            dirs::make(&path, 0o755).map_err(failed)?;
            if kind.in_memory() {
                mounting::ensure_tmpfs(&path, None, mounting::Swap::Never).map_err(failed)?;
            }
            ownership::of_directory(&path, 0o777, with.fs_group).map_err(failed)?;
            atomic::write(&path, payload, with.fs_group).map_err(failed)?;
        }
    }
    Ok(path)
}

/// Unmounts all that is mounted for a pod: volumes in memory, sub-paths. Tries everything, whatever fails. The
/// directories go with the pod's own.
pub fn teardown_all(dirs: &PodDirs) -> Result<(), TeardownError> {
    let failed = |failures| TeardownError { uid: dirs.uid().to_string(), failures };
    let mounts = mountinfo::mounts_under(dirs.path()).map_err(|e| failed(vec![e]))?;
    let failures: Vec<PathError> = mounts.iter().filter_map(|m| mounting::unmount(&m.point).err()).collect();
    if failures.is_empty() { Ok(()) } else { Err(failed(failures)) }
}

#[cfg(test)]
mod tests;
