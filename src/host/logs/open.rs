//! Opening log files without leaving the directory that they belong in.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// The directory of one container's logs, held open. A log is a name in it, never a path.
#[derive(Debug)]
pub struct LogDir {
    fd: OwnedFd,
    /// For messages only.
    path: PathBuf,
}

/// A log file, and which one it is while its names change.
#[derive(Debug)]
pub struct LogFile {
    pub file: File,
    pub inode: u64,
}

impl LogDir {
    /// Opens the directory of `log`, which must lie below `root` without any link on the way. Returns the log's own
    /// name too.
    pub fn of(root: &Path, log: &Path) -> io::Result<(Self, String)> {
        let outside =
            || io::Error::new(io::ErrorKind::InvalidInput, "the log is not below the pod log directory");
        let below = log.strip_prefix(root).map_err(|_| outside())?;
        if below.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(outside());
        }
        let name = below.file_name().and_then(|n| n.to_str()).ok_or_else(outside)?.to_owned();
        let parent = below.parent().filter(|p| !p.as_os_str().is_empty()).ok_or_else(outside)?;
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root_fd = rustix::fs::openat(CWD, root, directory, Mode::empty())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat2(root_fd, parent, flags, Mode::empty(), no_escape())?;
        Ok((Self { fd, path: root.join(parent) }, name))
    }

    pub fn fd(&self) -> impl AsFd + '_ {
        self.fd.as_fd()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a plain file of this directory. A link, a pipe or a directory in its place is refused, and nothing is
    /// waited for.
    pub fn open(&self, name: &str) -> io::Result<LogFile> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat2(&self.fd, name, flags, Mode::empty(), no_escape())?);
        let found = rustix::fs::fstat(&file)?;
        if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
        }
        Ok(LogFile { file, inode: found.st_ino })
    }

    /// The inode behind a name, links not followed; `None` if there is nothing.
    pub fn inode(&self, name: &str) -> io::Result<Option<u64>> {
        match rustix::fs::statat(&self.fd, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found.st_ino)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The names in it that begin with `prefix`, sorted.
    pub fn names(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            if let Ok(name) = entry?.file_name().to_str()
                && name.starts_with(prefix)
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }
}

fn no_escape() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}
