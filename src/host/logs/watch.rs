//! Tells followers of logs that something was written or renamed, through one inotify instance for all of them.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::followers::Followers;
use super::open::LogDir;

/// A log that is written at full speed causes an event a line; followers are woken at most this often.
const PAUSE: Duration = Duration::from_millis(2);

const EVENTS: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE);

/// Counts of what happened in a directory. Which file it was does not matter: whoever waits looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Files were written.
    pub data: u64,
    /// Names came or went.
    pub names: u64,
}

#[derive(Clone)]
pub struct LogWatch(Arc<Hub>);

struct Hub {
    fd: AsyncFd<OwnedFd>,
    dirs: Mutex<HashMap<i32, Dir>>,
    followers: Followers,
}

struct Dir {
    followers: usize,
    changes: watch::Sender<Changes>,
}

/// One follower's interest in a directory; ends when dropped.
pub struct Subscription {
    hub: Arc<Hub>,
    descriptor: i32,
    pub changes: watch::Receiver<Changes>,
}

impl LogWatch {
    /// Must be called within a tokio runtime. Ends with its last clone and subscription.
    pub fn start() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe for descriptors that may change; an OwnedFd never does"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        let hub = Arc::new(Hub { fd, dirs: Mutex::default(), followers: Followers::default() });
        tokio::spawn(listen(hub.clone()));
        Ok(Self(hub))
    }

    /// Those who are to be handed what rotation removes.
    pub fn followers(&self) -> &Followers {
        &self.0.followers
    }

    /// From now on, changes in this directory are counted.
    pub fn subscribe(&self, dir: &LogDir) -> io::Result<Subscription> {
        // By descriptor, so that it is this directory whatever stands at its path meanwhile.
        let path = format!("/proc/self/fd/{}", dir.fd().as_fd().as_raw_fd());
        let mut dirs = self.0.lock();
        let descriptor = inotify::add_watch(self.0.fd.get_ref(), path, EVENTS | WatchFlags::ONLYDIR)?;
        let entry =
            dirs.entry(descriptor).or_insert_with(|| Dir { followers: 0, changes: watch::Sender::default() });
        entry.followers += 1;
        let changes = entry.changes.subscribe();
        Ok(Subscription { hub: self.0.clone(), descriptor, changes })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut dirs = self.hub.lock();
        let Some(dir) = dirs.get_mut(&self.descriptor) else { return };
        dir.followers -= 1;
        if dir.followers == 0 {
            dirs.remove(&self.descriptor);
            let _ = inotify::remove_watch(self.hub.fd.get_ref(), self.descriptor);
        }
    }
}

impl Hub {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<i32, Dir>> {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what is pending.
    fn drain(&self, fd: &OwnedFd) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = inotify::Reader::new(fd, &mut buffer);
        let mut happened: HashMap<i32, (bool, bool)> = HashMap::new();
        let ended = loop {
            match reader.next() {
                Ok(event) => {
                    let names = ReadFlags::CREATE
                        | ReadFlags::MOVED_FROM
                        | ReadFlags::MOVED_TO
                        | ReadFlags::DELETE
                        | ReadFlags::QUEUE_OVERFLOW
                        | ReadFlags::IGNORED;
                    let entry = happened.entry(event.wd()).or_default();
                    entry.0 = true;
                    entry.1 |= event.events().intersects(names);
                }
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => break Ok(()),
                Err(e) => break Err(e.into()),
            }
        };
        let dirs = self.lock();
        // Events were dropped, so anything may have happened anywhere.
        let overflow = happened.keys().any(|wd| *wd < 0);
        for (descriptor, dir) in dirs.iter() {
            let (data, names) =
                if overflow { (true, true) } else { happened.get(descriptor).copied().unwrap_or_default() };
            if data {
                dir.changes.send_modify(|c| {
                    c.data += 1;
                    c.names += u64::from(names);
                });
            }
        }
        ended
    }
}

async fn listen(hub: Arc<Hub>) {
    loop {
        let Ok(mut guard) = hub.fd.readable().await else { return };
        match guard.try_io(|fd| hub.drain(fd.get_ref())) {
            Ok(Err(error)) => {
                tracing::error!(%error, "changes of logs cannot be watched any more");
                return;
            }
            Ok(Ok(())) => guard.clear_ready(),
            Err(_would_block) => {}
        }
        drop(guard);
        tokio::time::sleep(PAUSE).await;
    }
}
