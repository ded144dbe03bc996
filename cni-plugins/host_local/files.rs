//! The lease files of a network, one an address, in the reference plugin's format.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{self, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::lease::{Lease, LeaseOwner};
use crate::skel::Failure;

/// A network's directory. Changing it takes the lock.
pub struct LeaseFiles {
    dir: PathBuf,
}

impl LeaseFiles {
    pub fn in_directory(dir: &Path) -> Self {
        LeaseFiles { dir: dir.to_owned() }
    }

    /// Makes the lease appear with its content in one step, so that no instant shows half of it.
    pub fn write(&self, owner: &LeaseOwner, addr: IpAddr, scratch: &Path) -> Result<(), Failure> {
        let path = self.path(addr);
        let made = write_file(scratch, owner.content().as_bytes()).and_then(|()| {
            match fs::renameat_with(CWD, scratch, CWD, &path, RenameFlags::NOREPLACE) {
                // Not every filesystem can refuse to replace; under the lock, looking first does as well.
                Err(Errno::INVAL | Errno::NOSYS) if fs::lstat(&path).err() == Some(Errno::NOENT) => {
                    fs::rename(scratch, &path)
                }
                Err(Errno::INVAL | Errno::NOSYS) => Err(Errno::EXIST),
                other => other,
            }
        });
        made.map_err(|e| self.failed(&addr.to_string(), e))
    }

    pub fn remove(&self, addr: IpAddr) -> Result<(), Failure> {
        match fs::unlink(self.path(addr)) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed(&addr.to_string(), errno)),
        }
    }

    pub fn read(&self, addr: IpAddr) -> Result<Option<Lease>, Failure> {
        match std::fs::read(self.path(addr)) {
            Ok(content) => Ok(Some(Lease::parse(&content))),
            // Something else than a file under an address's name is nobody's lease, but takes the address.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => Ok(None),
            Err(e) => Err(Failure::io(format!("cannot read the lease {}: {e}", self.path(addr).display()))),
        }
    }

    /// Whether there is anything under the address's name.
    pub fn is_taken(&self, addr: IpAddr) -> Result<bool, Failure> {
        match fs::lstat(self.path(addr)) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.failed(&addr.to_string(), errno)),
        }
    }

    /// When the lease was written.
    pub fn written(&self, addr: IpAddr) -> Option<SystemTime> {
        std::fs::metadata(self.path(addr)).and_then(|m| m.modified()).ok()
    }

    /// The addresses that have a lease file of whatever content.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, Failure> {
        let failed = |e| Failure::io(format!("cannot list the leases in {}: {e}", self.dir.display()));
        let mut addrs = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(failed)? {
            addrs.extend(entry.map_err(failed)?.file_name().to_str().and_then(|n| n.parse::<IpAddr>().ok()));
        }
        Ok(addrs)
    }

    pub fn leases(&self) -> Result<Vec<(IpAddr, Lease)>, Failure> {
        let mut leases = Vec::new();
        for addr in self.addresses()? {
            if let Some(lease) = self.read(addr)? {
                leases.push((addr, lease));
            }
        }
        Ok(leases)
    }

    /// The address that was given last out of the set with that number.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let text = std::fs::read_to_string(self.last_path(set)).ok()?;
        text.trim().parse::<IpAddr>().ok().map(|a| a.to_canonical())
    }

    /// Notes the address given last. Without it the round of addresses starts over, and that is all.
    pub fn set_last_reserved(&self, set: usize, addr: IpAddr) {
        let _ = write_file(&self.last_path(set), addr.to_string().as_bytes());
    }

    /// What the directory looks like from outside. Its time changes with every lease made or freed, but on
    /// some kernels only every few milliseconds; the addresses given last, which every implementation
    /// notes, tell an ADD apart even then.
    pub fn state(&self, sets: usize) -> Result<String, Failure> {
        let stat = fs::stat(&self.dir).map_err(|e| self.failed("leases", e))?;
        let mut state = format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec);
        for set in 0..sets {
            state.push(' ');
            state.extend(self.last_reserved(set).map(|a| a.to_string()));
        }
        Ok(state)
    }

    pub fn failed(&self, what: &str, errno: Errno) -> Failure {
        let e = std::io::Error::from(errno);
        Failure::io(format!("cannot keep {what} in {}: {e}", self.dir.display()))
    }

    fn path(&self, addr: IpAddr) -> PathBuf {
        self.dir.join(addr.to_string())
    }

    fn last_path(&self, set: usize) -> PathBuf {
        self.dir.join(format!("last_reserved_ip.{set}"))
    }
}

fn write_file(path: &Path, content: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = fs::open(path, flags, Mode::from_raw_mode(0o600))?;
    let written = rustix::io::write(&file, content)?;
    if written == content.len() { Ok(()) } else { Err(Errno::NOSPC) }
}
