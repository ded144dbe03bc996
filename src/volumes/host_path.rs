//! hostPath: something of the host itself. Nothing is set up; it is only checked to be what the pod says it is.

use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Volume;
use keelson_host::PathError;
use keelson_host::dirs::PodDirs;
use keelson_kit::blocking::BlockingLimit;

use crate::error::VolumeError;
use crate::plugin::{Mounted, Prepare, Prepared, VolumeFuture, VolumePlugin};
use crate::stats::{Measure, VolumeStats};

/// Threads that look at host paths at once. What a path leads to may never answer (a server of NFS that is gone), and
/// everything else that blocks uses the same threads.
const CHECKS: usize = 64;
/// How long a check waits for its turn. All threads are only taken for so long where something hangs.
const TURN: Duration = Duration::from_secs(10);

pub(crate) struct HostPath {
    checks: BlockingLimit,
    turn: Duration,
}

impl Default for HostPath {
    fn default() -> Self {
        Self { checks: BlockingLimit::new(CHECKS), turn: TURN }
    }
}

impl VolumePlugin for HostPath {
    fn directory(&self) -> &'static str {
        "kubernetes.io~host-path"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.host_path.is_some()
    }

    fn prepare(&self, order: Prepare) -> VolumeFuture<'_, Prepared> {
        let (volume, name) = (order.volume.clone(), order.volume.name);
        Box::pin(async move {
            let Ok(permit) = tokio::time::timeout(self.turn, self.checks.acquire()).await else {
                let problem = "it cannot be looked at: all threads for that hang at other paths of the host";
                return Err(VolumeError::HostPath { volume: name, problem: problem.into() });
            };
            let aborted =
                |e: io::Error| VolumeError::Aborted { volume: name.clone(), problem: e.to_string() };
            let path = permit.map_err(aborted)?.run(move || check(&volume)).await.map_err(aborted)??;
            Ok(Mounted { volume: name, path }.into())
        })
    }

    /// What lies there is the host's. There is nothing of it in the pod's directory, to be found or to be measured, and
    /// nothing to give back.
    fn reconstruct(&self, _: &PodDirs) -> Result<Vec<Mounted>, PathError> {
        Ok(vec![])
    }

    fn release(&self, _: Mounted) -> VolumeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn stats(&self, _: Mounted, _: Measure) -> VolumeFuture<'_, Option<VolumeStats>> {
        Box::pin(async { Ok(None) })
    }
}

fn check(volume: &Volume) -> Result<PathBuf, VolumeError> {
    let source = volume.host_path.clone().unwrap_or_default();
    let path = PathBuf::from(&source.path);
    let refuse = |problem: String| VolumeError::HostPath { volume: volume.name.clone(), problem };
    if !path.is_absolute() || source.path.split('/').any(|part| part == "..") {
        return Err(refuse(format!("path {:?} must be absolute and without '..'", source.path)));
    }
    let kind = source.type_.as_deref().unwrap_or_default();
    let create = match kind {
        "DirectoryOrCreate" => create_directory(&path),
        "FileOrCreate" => create_file(&path),
        _ => Ok(()),
    };
    create.map_err(|e| refuse(format!("type {kind}: {} cannot be created: {e}", path.display())))?;

    let (what, fits): (&str, fn(&Metadata) -> bool) = match kind {
        // Not checked at all: the runtime makes a directory of what is missing.
        "" => return Ok(path),
        "Directory" | "DirectoryOrCreate" => ("a directory", |m| m.is_dir()),
        "File" | "FileOrCreate" => ("a file", |m| m.is_file()),
        "Socket" => ("a socket", |m| m.file_type().is_socket()),
        "CharDevice" => ("a character device", |m| m.file_type().is_char_device()),
        "BlockDevice" => ("a block device", |m| m.file_type().is_block_device()),
        other => {
            let known = "Directory, DirectoryOrCreate, File, FileOrCreate, Socket, CharDevice, BlockDevice";
            return Err(refuse(format!("type {other:?} is unknown; use one of {known}, or none")));
        }
    };
    match fs::metadata(&path) {
        Ok(found) if fits(&found) => Ok(path),
        Ok(_) => Err(refuse(format!("hostPath type check failed: {} is not {what}", path.display()))),
        Err(e) => Err(refuse(format!("hostPath type check failed: {} is not {what}: {e}", path.display()))),
    }
}

fn create_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Only the file: a missing parent is more likely a mistake than a wish.
fn create_file(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o644).open(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plugin::{Gathered, NoProgress, PodSetup};
    use crate::testing::pod_dirs;

    fn order(path: &Path) -> Prepare {
        let volume = serde_json::json!({"name": "data", "hostPath": {"path": path, "type": "Directory"}});
        let pod = PodSetup {
            pod: Arc::default(),
            dirs: pod_dirs(path),
            node_allocatable: Default::default(),
            progress: Arc::new(NoProgress),
        };
        Prepare {
            pod: Arc::new(pod),
            volume: serde_json::from_value(volume).unwrap(),
            gathered: Gathered::default(),
        }
    }

    #[tokio::test]
    async fn paths_that_hang_fail_the_next_volume_and_hold_no_further_thread() {
        let there = tempfile::tempdir().unwrap();
        let kind = HostPath { checks: BlockingLimit::new(1), turn: Duration::ZERO };
        let (answer, hangs) = std::sync::mpsc::channel::<()>();
        let stuck = tokio::spawn(kind.checks.acquire().await.unwrap().run(move || hangs.recv()));
        let error = kind.prepare(order(there.path())).await.unwrap_err().to_string();
        assert!(error.contains("\"data\"") && error.contains("hang at other paths"), "{error}");
        drop(answer);
        let _ = stuck.await.unwrap();
        let mounted = kind.prepare(order(there.path())).await.unwrap();
        assert_eq!(mounted.place.on_host(), there.path().to_str());
    }
}
