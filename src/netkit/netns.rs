//! Network namespaces: opened by path, compared, entered for the length of a call.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{Mode, OFlags, fstat, fstatfs, open};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// The filesystem that namespace files live on, and /proc for kernels that show them there.
const NSFS_MAGIC: u64 = 0x6e73_6673;
const PROC_MAGIC: u64 = 0x9fa0;

/// An open network namespace; it lives at least as long as this.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
    path: PathBuf,
}

impl NetNs {
    /// Opens the namespace at `path`. A missing path gives NOENT, a path to anything else INVAL.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let op = || format!("open the network namespace {}", path.display());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = open(path, flags, Mode::empty()).map_err(|errno| Error::system(op(), errno))?;
        let magic = fstatfs(&fd).map_err(|errno| Error::system(op(), errno))?.f_type as u64;
        if magic != NSFS_MAGIC && magic != PROC_MAGIC {
            return Err(Error::system(op(), Errno::INVAL));
        }
        Ok(NetNs { fd, path: path.to_owned() })
    }

    /// The namespace of the calling thread.
    pub fn current() -> Result<Self> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// Makes a namespace of its own that nothing else refers to, without entering it.
    pub fn anonymous() -> Result<Self> {
        let home = Self::current()?;
        unshare(CloneFlags::CLONE_NEWNET).map_err(|e| Error::nix("create a network namespace", e))?;
        let made = Self::current();
        home.join()?;
        made
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the two are one namespace.
    pub fn is_same(&self, other: &NetNs) -> Result<bool> {
        let identity = |ns: &NetNs| {
            fstat(&ns.fd)
                .map(|s| (s.st_dev, s.st_ino))
                .map_err(|errno| Error::system(format!("examine {}", ns.path.display()), errno))
        };
        Ok(identity(self)? == identity(other)?)
    }

    /// Runs `work` with the calling thread inside this namespace, and comes back whatever it returns.
    ///
    /// Sockets opened meanwhile stay in the namespace for good; files under /proc/sys/net that are opened
    /// meanwhile are the namespace's own.
    pub fn run<T, E: From<Error>>(
        &self,
        work: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let home = NetNs::current()?;
        self.join()?;
        let outcome = work();
        home.join()?;
        outcome
    }

    fn join(&self) -> Result<()> {
        setns(&self.fd, CloneFlags::CLONE_NEWNET).map_err(|errno| {
            Error::nix(format!("enter the network namespace {}", self.path.display()), errno)
        })
    }
}
