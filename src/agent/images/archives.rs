//! The image directory, for nodes without a registry: archives in it are brought into the runtime, when the agent starts and when
//! they come, and nobody collects them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use keelson_core::image::full_name;
use keelson_cri::containerd::{Blob, Containerd, ImageTarget, Lease};
use keelson_cri::{CriError, ErrorKind};
use keelson_host::{DirWatch, Writers, writers};
use keelson_image::{Archive, NamedImage, Part};
use tokio::sync::mpsc;

use super::Images;

/// How soon an archive is tried again that the runtime did not take.
const RETRY: Duration = Duration::from_secs(5);
/// What is sent at once.
const PIECE: usize = 1 << 20;
/// Longer than any import takes; the end of a lease that nobody gave back.
const LEASE: SignedDuration = SignedDuration::from_hours(24);

/// Tells an archive from another in its place: device, inode, size, time.
type Stamp = (u64, u64, u64, i64, i64);

enum Failure {
    /// Of the archive: it stays until the file changes.
    Archive(String),
    Runtime(CriError),
}

impl From<CriError> for Failure {
    fn from(error: CriError) -> Self {
        Self::Runtime(error)
    }
}

/// Until dropped.
pub async fn follow(dir: PathBuf, endpoint: String, images: Images) {
    let (runtime, mut watch) = match (Containerd::connect(&endpoint), DirWatch::new(&dir)) {
        (Ok(runtime), Ok(watch)) => (runtime, watch),
        (Err(error), _) => return give_up(&dir, &error.to_string()).await,
        (_, Err(error)) => return give_up(&dir, &error.to_string()).await,
    };
    let mut settled: BTreeMap<PathBuf, Stamp> = BTreeMap::new();
    loop {
        if let Err(error) = watch.arm() {
            tracing::warn!(dir = %dir.display(), %error, "the image directory cannot be watched");
        }
        let mut again = false;
        for (path, stamp) in archives(dir.clone()).await {
            if settled.get(&path) == Some(&stamp) {
                continue;
            }
            let file = path.display();
            match import(&runtime, &path).await {
                Ok(brought) => {
                    if !brought.is_empty() {
                        tracing::info!(%file, images = ?brought, "images brought in from an archive");
                        images.brought();
                    }
                }
                Err(Failure::Archive(error)) => tracing::warn!(%file, error, "image archive refused"),
                Err(Failure::Runtime(error)) if error.is_unimplemented() => {
                    return give_up(&dir, "the runtime is not containerd, and CRI has no call for it").await;
                }
                Err(Failure::Runtime(error)) => {
                    // A runtime that is away is said elsewhere.
                    if error.kind != ErrorKind::Unavailable {
                        tracing::warn!(%file, %error, "image archive not brought in, will try again");
                    }
                    again = true;
                    continue;
                }
            }
            settled.insert(path, stamp);
        }
        let changed = async {
            if let Err(error) = watch.changed().await {
                tracing::warn!(dir = %dir.display(), %error, "changes of the image directory are not noticed");
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(RETRY), if again => {}
        }
    }
}

async fn give_up(dir: &Path, why: &str) {
    tracing::error!(dir = %dir.display(), why, "archives of the image directory are not brought in");
    std::future::pending().await
}

/// Those that nobody is writing any more, by name. A directory that is not there has none.
async fn archives(dir: PathBuf) -> Vec<(PathBuf, Stamp)> {
    let list = move || -> io::Result<Vec<(PathBuf, Stamp)>> {
        let mut found = vec![];
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "tar") {
                continue;
            }
            // Not a pipe, which would be waited for.
            if !fs::metadata(&path).is_ok_and(|meta| meta.is_file()) {
                continue;
            }
            let Ok(file) = File::open(&path) else { continue };
            let Ok(meta) = file.metadata() else { continue };
            if writers(&file) != Writers::Some {
                let stamp = (meta.dev(), meta.ino(), meta.len(), meta.ctime(), meta.ctime_nsec());
                found.push((path, stamp));
            }
        }
        found.sort();
        Ok(found)
    };
    tokio::task::spawn_blocking(list).await.map(Result::unwrap_or_default).unwrap_or_default()
}

/// Answers with the names of what was not there before.
async fn import(runtime: &Containerd, path: &Path) -> Result<Vec<String>, Failure> {
    let path = path.to_owned();
    let (archive, images) = blocking(move || {
        let archive = Archive::open(&path).map_err(|e| e.to_string())?;
        let images = archive.images().map_err(|e| e.to_string())?;
        Ok((Arc::new(archive), images))
    })
    .await?;
    let mut wanted = vec![];
    for image in images {
        let name = full_name(&image.name).map_err(|e| Failure::Archive(format!("{:?}: {e}", image.name)))?;
        if !runtime.has_pinned(&name, &image.target.digest).await? {
            wanted.push((name, image));
        }
    }
    let mut brought = vec![];
    for (name, image) in wanted {
        let (reading, target) = (archive.clone(), image.target.clone());
        let parts = blocking(move || reading.parts(&target).map_err(|e| e.to_string())).await?;
        bring(runtime, &archive, &name, &image, parts).await?;
        brought.push(name);
    }
    Ok(brought)
}

async fn bring(
    runtime: &Containerd,
    archive: &Arc<Archive>,
    name: &str,
    image: &NamedImage,
    parts: Vec<Part>,
) -> Result<(), Failure> {
    let expires = Timestamp::now().saturating_add(LEASE).unwrap_or(Timestamp::MAX);
    let id = format!("keelson-{}", image.target.digest);
    let lease = runtime.lease(id, &expires.to_string()).await?;
    let done = write_all(runtime, &lease, archive, name, image, parts).await;
    if let Err(error) = runtime.release(lease).await {
        tracing::debug!(%error, "a lease is left to its end");
    }
    done
}

async fn write_all(
    runtime: &Containerd,
    lease: &Lease,
    archive: &Arc<Archive>,
    name: &str,
    image: &NamedImage,
    parts: Vec<Part>,
) -> Result<(), Failure> {
    for part in parts {
        let labels = part.references.clone();
        let blob = Blob { digest: part.digest.clone(), size: part.size, labels };
        let (send, pieces) = mpsc::channel(1);
        let reading = archive.clone();
        let read = tokio::task::spawn_blocking(move || -> io::Result<()> {
            let mut from = 0;
            while from < part.size {
                let piece = reading.read(&part, from, PIECE)?;
                from += piece.len() as u64;
                // Nobody wants more of it: the runtime has it already, or has said what is wrong.
                if send.blocking_send(piece).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let written = runtime.write(lease, &blob, pieces).await;
        read.await.map_err(io::Error::other).flatten().map_err(|e| Failure::Archive(e.to_string()))?;
        written?;
    }
    let target = ImageTarget {
        media_type: image.target.media_type.clone(),
        digest: image.target.digest.clone(),
        size: image.target.size,
    };
    Ok(runtime.name(lease, name, &target).await?)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| e.to_string()).flatten().map_err(Failure::Archive)
}
