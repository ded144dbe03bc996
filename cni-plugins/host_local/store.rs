//! The leases on disk, under their lock.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{self, CWD, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::allocate::{Choice, choose};
use super::index::{Entry, Index};
use super::lease::{Lease, LeaseOwner};
use super::range::RangeSet;
use crate::skel::Failure;

/// After this many taken addresses in a row the directory is listed, which is cheaper than asking on.
const PROBES: usize = 64;

/// Which boot of the host this is. Containers do not outlive one.
#[derive(Debug, Clone)]
pub struct Boot {
    pub id: String,
    pub began: SystemTime,
}

impl Boot {
    pub fn now() -> Result<Self, Failure> {
        let id = keelson_netkit::sysctl::get("kernel/random/boot_id")?;
        let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let uptime = Duration::new(uptime.tv_sec.unsigned_abs(), uptime.tv_nsec.unsigned_abs() as u32);
        Ok(Boot { id, began: SystemTime::now().checked_sub(uptime).unwrap_or(SystemTime::UNIX_EPOCH) })
    }
}

/// A network's leases. Nobody else changes them while this exists.
pub struct Store {
    dir: PathBuf,
    index: Index,
    boot: Boot,
    sets: usize,
    _lock: OwnedFd,
}

impl Store {
    /// Opens the directory, made if it is missing, and waits for its lock.
    pub fn open(dir: &Path, patience: Duration, boot: Boot, sets: usize) -> Result<Self, Failure> {
        if !dir.is_dir() {
            std::fs::create_dir_all(dir).map_err(|e| Failure::io(format!("cannot create {}: {e}", dir.display())))?;
        }
        let store = Store { dir: dir.to_owned(), index: Index::in_directory(dir), boot, sets, _lock: lock(dir, patience)? };
        store.index.create().map_err(|e| store.failed("index", e))?;
        store.refresh()?;
        Ok(store)
    }

    /// Opens the directory unless there is none, and so no lease.
    pub fn open_existing(dir: &Path, patience: Duration, boot: Boot, sets: usize) -> Result<Option<Self>, Failure> {
        if dir.is_dir() { Self::open(dir, patience, boot, sets).map(Some) } else { Ok(None) }
    }

    /// Reserves one address out of each set, or none at all.
    pub fn reserve(&mut self, owner: &LeaseOwner, sets: &[RangeSet], requested: &[IpAddr]) -> Result<Vec<Choice>, Failure> {
        let held = self.find(owner)?;
        if let Some(addr) = held.iter().find(|a| sets.iter().any(|set| set.range_of(**a).is_some())) {
            return Err(Failure::internal(format!(
                "container {} holds {addr} for {} already; an interface is added once and then deleted",
                owner.container,
                owner.ifname.as_deref().unwrap_or_default(),
            )));
        }
        let chosen = match self.choose(sets, requested) {
            Err(failure) if failure.code == Failure::NO_ADDRESS && self.reclaim()? => self.choose(sets, requested)?,
            other => other?,
        };
        let mut addrs = held;
        addrs.extend(chosen.iter().map(|c| c.address.addr));
        self.index.put(owner, &Entry { addrs, before_boot: false }).map_err(|e| self.failed("index", e))?;
        for (i, choice) in chosen.iter().enumerate() {
            if let Err(failure) = self.write(owner, choice.address.addr, i) {
                for made in &chosen[..i] {
                    let _ = fs::unlink(self.path(made.address.addr));
                }
                return Err(failure);
            }
        }
        self.settle();
        Ok(chosen)
    }

    /// Frees all addresses of an owner; having none is fine.
    pub fn release(&mut self, owner: &LeaseOwner) -> Result<(), Failure> {
        let old = owner.without_ifname();
        let held = self.find(owner)?;
        if held.is_empty() && self.index.get(owner).is_none() && self.index.get(&old).is_none() {
            return Ok(());
        }
        for addr in held {
            self.unlink(addr)?;
        }
        self.index.remove(owner);
        self.index.remove(&old);
        self.settle();
        Ok(())
    }

    /// Frees every address whose owner is not to be kept, and those of no owner.
    pub fn retain(&mut self, keep: impl Fn(&LeaseOwner) -> bool) -> Result<(), Failure> {
        for (addr, lease) in self.leases()? {
            match lease {
                Lease::Held(owner) if keep(&owner) => {}
                Lease::Held(owner) => {
                    self.unlink(addr)?;
                    self.index.remove(&owner);
                }
                Lease::Unfinished => self.unlink(addr)?,
            }
        }
        self.settle();
        Ok(())
    }

    /// The addresses an owner holds. Leases of very old plugins count when there is none of today's.
    pub fn find(&self, owner: &LeaseOwner) -> Result<Vec<IpAddr>, Failure> {
        for owner in [owner, &owner.without_ifname()] {
            let mut held = Vec::new();
            for addr in self.index.get(owner).map(|e| e.addrs).unwrap_or_default() {
                if self.read(addr)?.is_some_and(|lease| lease.is_held_by(owner)) {
                    held.push(addr);
                }
            }
            if !held.is_empty() {
                return Ok(held);
            }
        }
        Ok(Vec::new())
    }

    fn choose(&self, sets: &[RangeSet], requested: &[IpAddr]) -> Result<Vec<Choice>, Failure> {
        let mut probed = 0;
        let mut taken: Option<HashSet<IpAddr>> = None;
        choose(sets, requested, |set| self.last_reserved(set), |addr| {
            if let Some(taken) = &taken {
                return Ok(!taken.contains(&addr));
            }
            probed += 1;
            if probed > PROBES {
                let list = self.addresses()?.into_iter().collect::<HashSet<_>>();
                let free = !list.contains(&addr);
                taken = Some(list);
                return Ok(free);
            }
            match fs::lstat(self.path(addr)) {
                Ok(_) => Ok(false),
                Err(Errno::NOENT) => Ok(true),
                Err(errno) => Err(self.failed(&addr.to_string(), errno)),
            }
        })
    }

    /// Frees what nobody can be using: leases of an earlier boot, and files whose writer died before it
    /// filled them. Tells whether there was any.
    fn reclaim(&self) -> Result<bool, Failure> {
        let mut any = false;
        for (addr, lease) in self.leases()? {
            let owner = match lease {
                Lease::Held(owner) if self.index.get(&owner).is_some_and(|e| e.before_boot) => Some(owner),
                Lease::Held(_) => continue,
                Lease::Unfinished => None,
            };
            self.unlink(addr)?;
            if let Some(owner) = owner {
                self.index.remove(&owner);
            }
            any = true;
        }
        Ok(any)
    }

    /// Makes the lease appear with its content in one step, so that no instant shows half of it.
    fn write(&self, owner: &LeaseOwner, addr: IpAddr, set: usize) -> Result<(), Failure> {
        let scratch = self.index.scratch();
        let path = self.path(addr);
        write_file(&scratch, owner.content().as_bytes()).map_err(|e| self.failed(&addr.to_string(), e))?;
        match fs::renameat_with(CWD, &scratch, CWD, &path, RenameFlags::NOREPLACE) {
            // Not every filesystem can refuse to replace; under the lock, looking first does as well.
            Err(Errno::INVAL | Errno::NOSYS) if fs::lstat(&path).err() == Some(Errno::NOENT) => fs::rename(&scratch, &path),
            Err(Errno::INVAL | Errno::NOSYS) => Err(Errno::EXIST),
            other => other,
        }
        .map_err(|e| self.failed(&addr.to_string(), e))?;
        // The lease is made. Without this file the round of addresses starts over, and that is all.
        let _ = write_file(&self.dir.join(format!("last_reserved_ip.{set}")), addr.to_string().as_bytes());
        Ok(())
    }

    fn unlink(&self, addr: IpAddr) -> Result<(), Failure> {
        match fs::unlink(self.path(addr)) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed(&addr.to_string(), errno)),
        }
    }

    fn read(&self, addr: IpAddr) -> Result<Option<Lease>, Failure> {
        match std::fs::read(self.path(addr)) {
            Ok(content) => Ok(Some(Lease::parse(&content))),
            // Something else than a file under an address's name is nobody's lease, but takes the address.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => Ok(None),
            Err(e) => Err(Failure::io(format!("cannot read the lease {}: {e}", self.path(addr).display()))),
        }
    }

    fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let text = std::fs::read_to_string(self.dir.join(format!("last_reserved_ip.{set}"))).ok()?;
        text.trim().parse::<IpAddr>().ok().map(|a| a.to_canonical())
    }

    /// The addresses that have a lease file of whatever content.
    fn addresses(&self) -> Result<Vec<IpAddr>, Failure> {
        let failed = |e| Failure::io(format!("cannot list the leases in {}: {e}", self.dir.display()));
        let mut addrs = Vec::new();
        for entry in std::fs::read_dir(&self.dir).map_err(failed)? {
            addrs.extend(entry.map_err(failed)?.file_name().to_str().and_then(|n| n.parse::<IpAddr>().ok()));
        }
        Ok(addrs)
    }

    fn leases(&self) -> Result<Vec<(IpAddr, Lease)>, Failure> {
        let mut leases = Vec::new();
        for addr in self.addresses()? {
            if let Some(lease) = self.read(addr)? {
                leases.push((addr, lease));
            }
        }
        Ok(leases)
    }

    /// Brings the index up to date if anyone else changed the leases, or if the host was booted.
    fn refresh(&self) -> Result<(), Failure> {
        let stamp = self.index.stamp();
        let now = self.stamp()?;
        if stamp.as_deref() == Some(now.as_str()) {
            return Ok(());
        }
        let (old_boot, old_state) = stamp.as_deref().and_then(|s| s.split_once('\n')).unwrap_or_default();
        let (_, state) = now.split_once('\n').unwrap_or_default();
        let same_boot = old_boot == self.boot.id;
        let unchanged = old_state == state;
        let mut owners: HashMap<LeaseOwner, Entry> = HashMap::new();
        for (addr, lease) in self.leases()? {
            let Lease::Held(owner) = lease else { continue };
            let before_boot = match same_boot {
                // What was known in this boot keeps its mark; what has appeared since is of this boot.
                true => self.index.get(&owner).is_some_and(|e| e.before_boot),
                // Nothing was changed since a former boot: all of it is former. Otherwise the file's time tells.
                false => unchanged || self.written(addr).is_some_and(|time| time < self.boot.began),
            };
            let entry = owners.entry(owner).or_insert(Entry { addrs: Vec::new(), before_boot: true });
            entry.addrs.push(addr);
            entry.before_boot &= before_boot;
        }
        for (owner, entry) in &owners {
            if self.index.get(owner).as_ref() != Some(entry) {
                self.index.put(owner, entry).map_err(|e| self.failed("index", e))?;
            }
        }
        self.index.retain(owners.keys());
        self.settle();
        Ok(())
    }

    fn written(&self, addr: IpAddr) -> Option<SystemTime> {
        std::fs::metadata(self.path(addr)).and_then(|m| m.modified()).ok()
    }

    /// Notes that the index is complete as of now. Should that fail, the next plugin builds it anew.
    fn settle(&self) {
        if let Ok(stamp) = self.stamp() {
            let _ = self.index.set_stamp(&stamp);
        }
    }

    /// What the directory of leases looks like from outside. Its time changes with every lease made or
    /// freed, but on some kernels only every few milliseconds; the addresses given last, which every
    /// implementation notes, tell an ADD apart even then.
    fn stamp(&self) -> Result<String, Failure> {
        let stat = fs::stat(&self.dir).map_err(|e| self.failed("stamp", e))?;
        let mut stamp = format!("{}\n{}.{:09}", self.boot.id, stat.st_mtime, stat.st_mtime_nsec);
        for set in 0..self.sets {
            stamp.push(' ');
            stamp.extend(self.last_reserved(set).map(|a| a.to_string()));
        }
        Ok(stamp)
    }

    fn path(&self, addr: IpAddr) -> PathBuf {
        self.dir.join(addr.to_string())
    }

    fn failed(&self, what: &str, errno: Errno) -> Failure {
        let e = std::io::Error::from(errno);
        Failure::io(format!("cannot keep {what} in {}: {e}", self.dir.display()))
    }
}

/// Takes the lock that all implementations share. One that is held for too long is told, not waited for.
fn lock(dir: &Path, patience: Duration) -> Result<OwnedFd, Failure> {
    let path = dir.join("lock");
    let failed = |e: Errno| Failure::io(format!("cannot lock {}: {}", path.display(), std::io::Error::from(e)));
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = fs::open(&path, flags, Mode::from_raw_mode(0o750)).map_err(failed)?;
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_micros(200);
    loop {
        match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
            }
            Err(Errno::AGAIN) => {
                return Err(Failure::new(
                    Failure::TRY_AGAIN,
                    format!("the lock {} is held by another process", path.display()),
                    format!("waited {} s for it", patience.as_secs_f32()),
                ));
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
}

fn write_file(path: &Path, content: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = fs::open(path, flags, Mode::from_raw_mode(0o600))?;
    let written = rustix::io::write(&file, content)?;
    if written == content.len() { Ok(()) } else { Err(Errno::NOSPC) }
}
