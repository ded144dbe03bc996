//! A unix socket that only its owner can open.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("cannot make the directory {path} for the local socket: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("another keelson answers on {0}: stop it, or give this one another --socket")]
    InUse(PathBuf),
    #[error("{0} is there and is not a socket: remove it, or give another --socket")]
    NotASocket(PathBuf),
    #[error("cannot listen on the local socket {path}: {source}")]
    Listen { path: PathBuf, source: io::Error },
}

/// A listening socket whose file goes when it is dropped.
#[derive(Debug)]
pub(crate) struct OwnSocket {
    pub listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        // Only our own file: a successor may have put its socket there already.
        if fs::symlink_metadata(&self.path).is_ok_and(|now| now.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on `path` with mode 0600. A socket that nobody answers on, left by a killed agent, is replaced.
pub(crate) fn listen(path: &Path) -> Result<OwnSocket, SocketError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.is_dir() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|source| SocketError::Directory { path: directory.into(), source })?;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NotASocket(path.into())),
        Ok(_) if still_answers(path) => return Err(SocketError::InUse(path.into())),
        _ => {}
    }
    // Made under another name and moved into place, so that the socket never stands there with a wider mode.
    let fresh = directory.join(format!(".{}.{}", file_name(path), std::process::id()));
    let failed = |source| SocketError::Listen { path: path.into(), source };
    let _ = fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh).map_err(failed)?;
    let placed = fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&fresh, path))
        .and_then(|()| fs::symlink_metadata(path));
    match placed {
        Ok(metadata) => Ok(OwnSocket { listener, path: path.into(), inode: metadata.ino() }),
        Err(source) => {
            let _ = fs::remove_file(&fresh);
            Err(failed(source))
        }
    }
}

/// A predecessor that was killed a moment ago answers until the kernel has taken it down, so it is asked for a while.
fn still_answers(path: &Path) -> bool {
    for _ in 0..60 {
        if std::os::unix::net::UnixStream::connect(path).is_err() {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    true
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_else(|| "socket".into())
}
