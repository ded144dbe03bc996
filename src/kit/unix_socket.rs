//! A unix socket for its owner and root: made with mode 0600, its peers checked by their user, which the kernel knows.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep};

/// How long a predecessor may take to end. One that was killed answers until the kernel has taken it down.
const PREDECESSOR_ENDS: Duration = Duration::from_secs(3);
const PREDECESSOR_POLL: Duration = Duration::from_millis(50);
/// Out of descriptors: they come back as connections end, not by asking again at once.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("cannot make the directory {path} for the socket: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("another {what} answers on {path}: stop it, or give this one another --socket")]
    InUse { what: &'static str, path: PathBuf },
    #[error("{0} is there and is not a socket: remove it, or give another --socket")]
    NotASocket(PathBuf),
    #[error("cannot listen on the socket {path}: {source}")]
    Listen { path: PathBuf, source: io::Error },
}

/// A listening socket whose file goes when it is dropped.
#[derive(Debug)]
pub struct OwnSocket {
    listener: UnixListener,
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

impl OwnSocket {
    /// Listens on `path`. A socket that nobody answers on, left by a process that was killed, is replaced; one that is
    /// answered on is waited for a few seconds, in case that its process is just ending. `what` names this program in
    /// messages.
    pub async fn listen(path: &Path, what: &'static str) -> Result<Self, SocketError> {
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !directory.is_dir() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .map_err(|source| SocketError::Directory { path: directory.into(), source })?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NotASocket(path.into())),
            Ok(_) if !predecessor_ended(path, what).await => {
                return Err(SocketError::InUse { what, path: path.into() });
            }
            _ => {}
        }
        place(path, directory).map_err(|source| SocketError::Listen { path: path.into(), source })
    }

    /// The next connection of root or of this process's own user. Others are refused: the file's mode keeps them out
    /// already, and this holds should someone widen it.
    pub async fn accept(&self) -> UnixStream {
        let own_uid = rustix::process::geteuid().as_raw();
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(socket = %self.path.display(), %error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match stream.peer_cred() {
                Ok(peer) if may_connect(peer.uid(), own_uid) => return stream,
                Ok(peer) => {
                    let (socket, uid) = (self.path.display(), peer.uid());
                    tracing::warn!(%socket, uid, "refused a peer that is neither root nor the owner");
                }
                Err(error) => {
                    let socket = self.path.display();
                    tracing::warn!(%socket, %error, "refused a peer whose user the kernel does not name");
                }
            }
        }
    }
}

fn may_connect(peer_uid: u32, own_uid: u32) -> bool {
    peer_uid == 0 || peer_uid == own_uid
}

/// Made under another name and moved into place, so that the socket never stands there with a wider mode.
fn place(path: &Path, directory: &Path) -> io::Result<OwnSocket> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let fresh = directory.join(format!(".{name}.{}", std::process::id()));
    let _ = fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh)?;
    let placed = fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&fresh, path))
        .and_then(|()| fs::symlink_metadata(path));
    match placed {
        Ok(metadata) => Ok(OwnSocket { listener, path: path.into(), inode: metadata.ino() }),
        Err(error) => {
            let _ = fs::remove_file(&fresh);
            Err(error)
        }
    }
}

/// True once nobody answers on the socket any more.
async fn predecessor_ended(path: &Path, what: &'static str) -> bool {
    let since = Instant::now();
    let mut is_first = true;
    while UnixStream::connect(path).await.is_ok() {
        if since.elapsed() >= PREDECESSOR_ENDS {
            return false;
        }
        if std::mem::take(&mut is_first) {
            let (socket, patience) = (path.display(), PREDECESSOR_ENDS);
            tracing::info!(%socket, ?patience, "another {what} still answers on the socket; waiting for its end");
        }
        sleep(PREDECESSOR_POLL).await;
    }
    true
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_socket_is_for_its_owner_only_and_its_file_goes_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/s.sock");
        let socket = OwnSocket::listen(&path, "test").await.unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let said = async { UnixStream::connect(&path).await.unwrap().write_all(b"hello").await.unwrap() };
        let (mut accepted, ()) = tokio::join!(socket.accept(), said);
        let mut text = String::new();
        accepted.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_a_killed_process_left_is_replaced_and_what_is_no_socket_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves the file, as a killed process does");
        drop(OwnSocket::listen(&path, "test").await.unwrap());
        fs::write(&path, "precious").unwrap();
        let refused = OwnSocket::listen(&path, "test").await;
        assert!(matches!(refused, Err(SocketError::NotASocket(_))), "{refused:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_living_predecessor_is_waited_for_and_then_left_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let first = OwnSocket::listen(&path, "test").await.unwrap();
        let refused = OwnSocket::listen(&path, "test").await.unwrap_err().to_string();
        assert!(refused.starts_with(&format!("another test answers on {}", path.display())), "{refused}");
        assert!(UnixStream::connect(&path).await.is_ok(), "the first one still serves");
        drop(first);
    }

    #[tokio::test]
    async fn a_dying_predecessor_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.sock");
        let first = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let accepted = tokio::task::spawn_blocking(move || {
            // Ends when it was asked twice.
            let _ = (first.accept().unwrap(), first.accept().unwrap());
        });
        let successor = OwnSocket::listen(&path, "test").await.unwrap();
        accepted.await.unwrap();
        let (_, connected) = tokio::join!(successor.accept(), UnixStream::connect(&path));
        assert!(connected.is_ok());
    }

    #[test]
    fn root_and_the_owner_may_connect() {
        for (peer, own, may) in [(0, 1000, true), (1000, 1000, true), (1001, 1000, false), (1000, 0, false)] {
            assert_eq!(may_connect(peer, own), may, "{peer} to {own}");
        }
    }
}
