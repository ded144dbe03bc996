//! Waiting for a directory to change, by inotify. Which change it was does not matter: whoever waits reads again.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a directory that may come and go. While it is missing, its nearest existing ancestor is watched instead.
pub struct DirWatch {
    path: PathBuf,
    fd: AsyncFd<OwnedFd>,
    watched: Option<Watched>,
}

struct Watched {
    descriptor: i32,
    path: PathBuf,
}

/// Writers that are done, arrivals, departures. IN_MODIFY is left out on purpose: a file that is being written is read
/// when its writer closes it.
const CONTENT: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

impl DirWatch {
    pub fn new(path: &Path) -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for descriptors that may change; an OwnedFd never does"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Self { path: path.to_owned(), fd, watched: None })
    }

    /// Puts the watch where it belongs now. To be called before every scan of the directory, so that no change falls
    /// between the scan and the watch.
    pub fn arm(&mut self) -> io::Result<()> {
        let mut here: &Path = &self.path;
        loop {
            match inotify::add_watch(self.fd.get_ref(), here, CONTENT | WatchFlags::ONLYDIR) {
                Ok(descriptor) => {
                    if let Some(old) = self.watched.take()
                        && old.descriptor != descriptor
                        && old.path != here
                    {
                        inotify::remove_watch(self.fd.get_ref(), old.descriptor).ok();
                    }
                    self.watched = Some(Watched { descriptor, path: here.to_owned() });
                    return Ok(());
                }
                Err(e @ (Errno::NOENT | Errno::NOTDIR)) => match here.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => here = parent,
                    _ => return Err(e.into()),
                },
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Returns when something changed since `arm`.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut guard = self.fd.readable().await?;
            match guard.try_io(|fd| drain(fd.get_ref())) {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) => {}
                Ok(Err(e)) => return Err(e),
                Err(_would_block) => {}
            }
        }
    }
}

/// Reads what is pending. True when there was anything but the end of an old watch.
fn drain(fd: &OwnedFd) -> io::Result<bool> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(fd, &mut buffer);
    let (mut any, mut real) = (false, false);
    loop {
        match reader.next() {
            Ok(event) => {
                any = true;
                real |= event.events() != ReadFlags::IGNORED;
            }
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if any => return Ok(real),
            Err(e) => return Err(e.into()),
        }
    }
}
