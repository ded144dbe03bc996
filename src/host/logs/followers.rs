//! Hands files that rotation is about to remove to whoever follows their log in this process.
//!
//! Rotation removes by name, as quickly as a log fills; a follower may not have run since a file came up. So rotation
//! opens the file once more for each follower of the log before its name goes. Nobody waits for anybody: rotation goes on
//! at once, and a follower finds the file when it next looks.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::open::{LogDir, LogFile};

/// Rotated files that wait for one follower, at most. Each costs a descriptor, and the disk space of a file that may be
/// removed already.
pub const MOST_WAITING: usize = 32;

/// Everybody who follows a log, by log.
#[derive(Debug, Clone, Default)]
pub struct Followers(Arc<Mutex<HashMap<LogId, Vec<Inbox>>>>);

/// A log's directory by device and inode, since paths change, and its name there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LogId {
    directory: (u64, u64),
    name: String,
}

type Inbox = Arc<Mutex<VecDeque<HandedOver>>>;

/// A rotated file that may have lost its name.
#[derive(Debug)]
pub struct HandedOver {
    pub name: String,
    pub file: LogFile,
}

/// One follower's place; ends when dropped.
#[derive(Debug)]
pub struct Registration {
    followers: Followers,
    log: LogId,
    inbox: Inbox,
}

impl Followers {
    /// From now on, no file of this log is removed by [`hand_over`](Self::hand_over)'s callers without being handed to the
    /// one who registers.
    pub fn register(&self, dir: &LogDir, name: &str) -> io::Result<Registration> {
        let log = LogId::of(dir, name)?;
        let inbox = Inbox::default();
        lock(&self.0).entry(log.clone()).or_default().push(inbox.clone());
        Ok(Registration { followers: self.clone(), log, inbox })
    }

    /// To be called before the rotated file `rotated` of the log `name` is removed. The disk space is needed, so a follower
    /// that cannot be given the file loses it, and the log says so.
    pub(super) fn hand_over(&self, dir: &LogDir, name: &str, rotated: &str) {
        let Ok(log) = LogId::of(dir, name) else { return };
        for inbox in lock(&self.0).get(&log).into_iter().flatten() {
            match dir.open(rotated) {
                Ok(file) => put(inbox, HandedOver { name: rotated.into(), file }, dir),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return,
                Err(error) => {
                    tracing::warn!(log = %dir.path().join(rotated).display(), %error, "a follower loses a rotated log");
                }
            }
        }
    }
}

fn put(inbox: &Inbox, file: HandedOver, dir: &LogDir) {
    let mut waiting = lock(inbox);
    if waiting.len() == MOST_WAITING
        && let Some(lost) = waiting.pop_front()
    {
        tracing::warn!(log = %dir.path().join(lost.name).display(), "a follower is too slow and loses a rotated log");
    }
    waiting.push_back(file);
}

impl Registration {
    /// What was handed over since the last call, the oldest first.
    pub fn take(&self) -> VecDeque<HandedOver> {
        std::mem::take(&mut *lock(&self.inbox))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut followers = lock(&self.followers.0);
        let Some(inboxes) = followers.get_mut(&self.log) else { return };
        inboxes.retain(|inbox| !Arc::ptr_eq(inbox, &self.inbox));
        if inboxes.is_empty() {
            followers.remove(&self.log);
        }
    }
}

impl LogId {
    fn of(dir: &LogDir, name: &str) -> io::Result<Self> {
        let found = rustix::fs::fstat(dir.fd())?;
        Ok(Self { directory: (found.st_dev, found.st_ino), name: name.into() })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
