//! Carries out a rotation: everything but telling the runtime to reopen its log.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use keelson_core::logs::rotation::{self, archive_name, is_plain_rotated, temporary_name};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};

use super::followers::Followers;
use super::open::LogDir;
use super::writers::{Writers, writers};

/// A log that was moved aside and whose runtime still writes to it.
pub struct Rotation {
    dir: LogDir,
    name: String,
    aside: String,
    /// Files of earlier rotations that are still plain.
    older: Vec<String>,
    followers: Followers,
}

impl Rotation {
    /// Clears up and moves the log aside. From here until the runtime has reopened the log it writes to the file under its
    /// new name, so nothing is lost. What is removed, here and by [`compress`](Self::compress), is handed to `followers`
    /// first.
    pub fn begin(
        root: &Path,
        log: &Path,
        max_files: usize,
        now: Timestamp,
        followers: &Followers,
    ) -> io::Result<Self> {
        let (dir, name) = LogDir::of(root, log)?;
        let plan = rotation::plan(&name, &dir.names(&name)?, max_files, now);
        for old in &plan.remove {
            if is_plain_rotated(&name, old) {
                followers.hand_over(&dir, &name, old);
            }
            remove(&dir, old)?;
        }
        // Never over another file: what stood there would be lost.
        rustix::fs::renameat_with(dir.fd(), &name, dir.fd(), &plan.aside, RenameFlags::NOREPLACE)?;
        Ok(Self { dir, name, aside: plan.aside, older: plan.compress, followers: followers.clone() })
    }

    /// The runtime has reopened the log: compresses older files. The next rotation of this log must wait for it.
    pub fn compress(self) -> io::Result<()> {
        self.older.iter().try_for_each(|plain| self.compress_one(plain))
    }

    /// Replaces a rotated log by its archive. A crash at any point leaves the log, and at most a temporary file that the
    /// next rotation removes.
    fn compress_one(&self, rotated: &str) -> io::Result<()> {
        let dir = &self.dir;
        let mut log = dir.open(rotated)?;
        if writers(&log.file) == Writers::Some {
            // Its last lines are still on the way; the next rotation finds it complete.
            return Ok(());
        }
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&log.file)?.st_mode & 0o777);
        let temporary = temporary_name(rotated);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let out = File::from(rustix::fs::openat(dir.fd(), &temporary, flags, mode)?);
        let done = pack(&mut log.file, out)
            .and_then(|()| Ok(rustix::fs::renameat(dir.fd(), &temporary, dir.fd(), archive_name(rotated))?));
        if done.is_err() {
            remove(dir, &temporary)?;
        }
        done?;
        self.followers.hand_over(dir, &self.name, rotated);
        remove(dir, rotated)
    }

    /// The runtime could not reopen the log: puts it back, to be tried again later.
    pub fn undo(self) -> io::Result<()> {
        let back = rustix::fs::renameat_with(
            self.dir.fd(),
            &self.aside,
            self.dir.fd(),
            &self.name,
            RenameFlags::NOREPLACE,
        );
        match back {
            // The runtime has made the new log after all; then this is an ordinary rotated one.
            Err(rustix::io::Errno::EXIST) => Ok(()),
            other => Ok(other?),
        }
    }
}

fn remove(dir: &LogDir, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(dir.fd(), name, AtFlags::empty()) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

fn pack(log: &mut File, out: File) -> io::Result<()> {
    let mut encoder = GzEncoder::new(io::BufWriter::with_capacity(64 << 10, out), Compression::fast());
    io::copy(&mut io::BufReader::with_capacity(64 << 10, log), &mut encoder)?;
    let mut file = encoder.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.flush()
}

/// The size of a log, or `None` if it is not there. Nothing is opened.
pub fn size(log: &Path) -> io::Result<Option<u64>> {
    match std::fs::symlink_metadata(log) {
        Ok(found) => Ok(Some(if found.is_file() { found.len() } else { 0 })),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests;
