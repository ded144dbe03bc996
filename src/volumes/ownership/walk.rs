//! Gives all that lies in a volume to the pod's fsGroup.
//!
//! The volume's content belongs to a pod, which may change it meanwhile. So every directory is opened beneath the one before,
//! what is changed is held by a descriptor while it is looked at and changed, no link is followed and no mount entered.
//! Neither the number of files nor what they are called costs memory. The top comes last: it says that the rest was done.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use keelson_core::volumes::{FsGroup, Owned, OwnedKind, OwnershipChange};
use keelson_host::path_error::{At, PathError};
use keelson_host::tree;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// Directories deeper than this are left as they are, which the log says: each level costs a descriptor and a buffer.
const MAX_DEPTH: usize = 256;

/// Breaks a walk off.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// Interrupts when it is dropped: who waits for the walk is gone.
pub(crate) struct InterruptOnDrop(Interrupt);

impl Interrupt {
    pub fn on_drop(&self) -> InterruptOnDrop {
        InterruptOnDrop(self.clone())
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for InterruptOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// How a walk ended that nothing went wrong with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walked {
    /// So many entries, and so many of them could not be changed.
    All {
        entries: u64,
        failed: u64,
    },
    /// The change policy says that there was nothing to do.
    Skipped,
    Interrupted,
}

pub(crate) struct Walk<'a> {
    pub group: FsGroup,
    /// The pod may not write into the volume.
    pub read_only: bool,
    pub interrupt: &'a Interrupt,
    /// Hears how many entries were gone through: so often, and at the end of a walk that took so long.
    pub progress: &'a dyn Fn(u64),
    pub report_every: Duration,
}

/// Goes through the volume at a path that is the agent's own. What cannot be changed is counted and passed over: a filesystem
/// may not know groups, and a file may be immutable.
pub(crate) fn give_to_group(path: &Path, walk: &Walk<'_>) -> Result<Walked, PathError> {
    let top = tree::open_dir(path).at("open", path)?;
    let found = rustix::fs::fstat(&top).at("inspect", path)?;
    if !walk.group.needs_walk(owned(&found), walk.read_only) {
        return Ok(Walked::Skipped);
    }
    let mut steps = Steps { walk, entries: 0, failed: 0, reported: Instant::now(), told: false };
    let mut levels = vec![Dir::new(top).at("list", path)?];
    while let Some(here) = levels.last_mut() {
        if walk.interrupt.is_set() {
            return Ok(Walked::Interrupted);
        }
        let entry = match here.read() {
            Some(Ok(entry)) => entry,
            Some(Err(e)) => return Err(PathError::new("list a directory in", path, e)),
            None => {
                steps.count();
                let done = here.fd().and_then(|dir| steps.change_directory(dir));
                steps.note(done);
                levels.pop();
                continue;
            }
        };
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let dir = here.fd().at("list a directory in", path)?;
        let inner = match steps.entry(dir, name) {
            Ok(inner) => inner,
            Err(e) => {
                steps.note(Err(e));
                continue;
            }
        };
        let Some(inner) = inner else { continue };
        match levels.len() < MAX_DEPTH {
            true => levels.push(inner),
            false => steps.note(Err(Errno::TOOBIG)),
        }
    }
    if steps.told {
        (walk.progress)(steps.entries);
    }
    if steps.failed > 0 {
        tracing::warn!(path = %path.display(), failed = steps.failed, "not all of a volume was given to its fsGroup");
    }
    Ok(Walked::All { entries: steps.entries, failed: steps.failed })
}

struct Steps<'a> {
    walk: &'a Walk<'a>,
    entries: u64,
    failed: u64,
    reported: Instant,
    told: bool,
}

impl Steps<'_> {
    /// Changes one entry, unless it is a directory: that is opened, and changed after what is in it.
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Option<Dir>> {
        // Looked at by name first: most are as they should be, and need not be opened.
        let seen = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(seen) => owned(&seen),
            // Gone meanwhile.
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e),
        };
        if seen.kind == OwnedKind::Directory {
            match tree::open_subdir(dir, name) {
                Ok(inner) => return Dir::new(inner).map(Some),
                // Another filesystem is mounted there, and is not this volume; or it is gone, or no directory any more.
                Err(Errno::XDEV | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        self.count();
        if self.walk.group.change(seen, self.walk.read_only) == OwnershipChange::default() {
            return Ok(None);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
        let held = tree::openat2(dir, name, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty(), resolve);
        let held = match held {
            Ok(held) => held,
            Err(Errno::XDEV | Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e),
        };
        let change = self.walk.group.change(owned(&rustix::fs::fstat(&held)?), self.walk.read_only);
        if let Some(group) = change.group {
            rustix::fs::chownat(&held, c"", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = change.mode {
            // chmod does not take a descriptor that was opened for nothing, but its name under /proc.
            let name = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
            rustix::fs::chmod(name.as_str(), Mode::from_raw_mode(mode))?;
        }
        Ok(None)
    }

    fn change_directory(&self, dir: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let change = self.walk.group.change(owned(&rustix::fs::fstat(dir)?), self.walk.read_only);
        if let Some(group) = change.group {
            rustix::fs::fchown(dir, None, Some(Gid::from_raw(group)))?;
        }
        match change.mode {
            Some(mode) => rustix::fs::fchmod(dir, Mode::from_raw_mode(mode)),
            None => Ok(()),
        }
    }

    fn count(&mut self) {
        self.entries += 1;
        if self.reported.elapsed() >= self.walk.report_every {
            (self.reported, self.told) = (Instant::now(), true);
            (self.walk.progress)(self.entries);
        }
    }

    fn note(&mut self, done: rustix::io::Result<()>) {
        if let Err(error) = done {
            self.failed += 1;
            tracing::debug!(%error, "an entry of a volume keeps its group or mode");
        }
    }
}

fn owned(found: &Stat) -> Owned {
    let kind = match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => OwnedKind::Directory,
        FileType::Symlink => OwnedKind::Link,
        _ => OwnedKind::Other,
    };
    Owned { group: found.st_gid, mode: found.st_mode & 0o7777, kind }
}

#[cfg(test)]
mod tests;
