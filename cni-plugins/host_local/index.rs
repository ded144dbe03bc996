//! From a container to its addresses, without reading every lease.
//!
//! Beside the leases there is a directory of links, one an owner, whose targets name the owner's
//! addresses. The leases alone are the truth: an entry is only a hint where to look, checked against the
//! lease file before it is believed. What must never happen is a lease without an entry that everyone
//! relies on, so entries are written before leases, and a stamp tells whether the directory of leases has
//! changed since the index was last known to be complete: by the reference plugin, an administrator, or
//! a plugin that died half-way. Then it is built anew.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, CWD};
use rustix::io::Errno;
use sha2::{Digest, Sha512};

use super::lease::LeaseOwner;

/// Hidden, and full of dangling links, so that the reference plugin walks past it.
pub(super) const DIRECTORY: &str = ".keelson";
/// In front of the addresses in an entry: the lease was there before this boot.
const BEFORE_BOOT: char = '~';

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub addrs: Vec<IpAddr>,
    /// The lease is of an earlier boot, so its container cannot exist any more.
    pub before_boot: bool,
}

pub struct Index {
    dir: PathBuf,
}

impl Index {
    pub fn in_directory(leases: &Path) -> Self {
        Index { dir: leases.join(DIRECTORY) }
    }

    pub fn create(&self) -> Result<(), Errno> {
        match fs::mkdir(&self.dir, fs::Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Where a file is filled before it becomes a lease by being renamed.
    pub fn scratch(&self) -> PathBuf {
        self.dir.join("new")
    }

    pub fn get(&self, owner: &LeaseOwner) -> Option<Entry> {
        let target = fs::readlink(self.path(owner), Vec::new()).ok()?;
        parse(target.to_str().ok()?)
    }

    /// Writes an entry in place of the owner's former one.
    pub fn put(&self, owner: &LeaseOwner, entry: &Entry) -> Result<(), Errno> {
        let target = format(entry);
        let path = self.path(owner);
        match fs::symlink(target.as_str(), &path) {
            Err(Errno::EXIST) => {
                let scratch = self.dir.join("new-entry");
                let _ = fs::unlink(&scratch);
                fs::symlink(target.as_str(), &scratch)?;
                fs::rename(&scratch, &path)
            }
            other => other,
        }
    }

    pub fn remove(&self, owner: &LeaseOwner) {
        // A left-over entry does no harm, as it leads to no lease of this owner.
        let _ = fs::unlinkat(CWD, self.path(owner), AtFlags::empty());
    }

    /// The stamp that was left by the last plugin that knew the index to be complete.
    pub fn stamp(&self) -> Option<String> {
        std::fs::read_to_string(self.dir.join("stamp")).ok()
    }

    pub fn set_stamp(&self, stamp: &str) -> Result<(), Errno> {
        let flags = fs::OFlags::WRONLY | fs::OFlags::CREATE | fs::OFlags::TRUNC | fs::OFlags::CLOEXEC;
        let file = fs::open(self.dir.join("stamp"), flags, fs::Mode::from_raw_mode(0o600))?;
        rustix::io::write(&file, stamp.as_bytes()).map(drop)
    }

    /// Drops every entry but those of the given owners.
    pub fn retain<'a>(&self, owners: impl Iterator<Item = &'a LeaseOwner>) {
        let keep: HashSet<String> = owners.map(name).collect();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let file = entry.file_name();
            let is_entry = entry.file_type().is_ok_and(|t| t.is_symlink());
            if is_entry && !file.to_str().is_some_and(|n| keep.contains(n)) {
                let _ = fs::unlink(entry.path());
            }
        }
    }

    fn path(&self, owner: &LeaseOwner) -> PathBuf {
        self.dir.join(name(owner))
    }
}

fn name(owner: &LeaseOwner) -> String {
    let hash: [u8; 64] = Sha512::digest(owner.content().as_bytes()).into();
    keelson_kit::hex::encode(&hash[..16])
}

fn format(entry: &Entry) -> String {
    let addrs: Vec<String> = entry.addrs.iter().map(ToString::to_string).collect();
    let mark = if entry.before_boot { String::from(BEFORE_BOOT) } else { String::new() };
    mark + &addrs.join(",")
}

fn parse(text: &str) -> Option<Entry> {
    let (before_boot, list) = match text.strip_prefix(BEFORE_BOOT) {
        Some(list) => (true, list),
        None => (false, text),
    };
    let addrs = list.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
    Some(Entry { addrs, before_boot })
}
