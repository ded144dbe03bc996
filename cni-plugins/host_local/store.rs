//! A network's leases under their lock: given, freed, found, and reclaimed.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use super::allocate::{Choice, choose};
use super::boot::Boot;
use super::files::LeaseFiles;
use super::index::{Entry, Index};
use super::lease::{Lease, LeaseOwner};
use super::lock::lock;
use super::range::RangeSet;
use crate::skel::Failure;

/// After this many taken addresses in a row the directory is listed, which is cheaper than asking on.
const PROBES: usize = 64;

/// A network's leases. Nobody else changes them while this exists.
pub struct Store {
    files: LeaseFiles,
    index: Index,
    boot: Boot,
    /// How many range sets there are.
    sets: usize,
    _lock: OwnedFd,
}

impl Store {
    /// Opens the directory, made if it is missing, and waits for its lock.
    pub fn open(dir: &Path, patience: Duration, boot: Boot, sets: usize) -> Result<Self, Failure> {
        if !dir.is_dir() {
            let failed = |e| Failure::io(format!("cannot create {}: {e}", dir.display()));
            std::fs::create_dir_all(dir).map_err(failed)?;
        }
        let (files, index) = (LeaseFiles::in_directory(dir), Index::in_directory(dir));
        let store = Store { files, index, boot, sets, _lock: lock(dir, patience)? };
        store.index.create().map_err(|e| store.files.failed("the index", e))?;
        store.refresh()?;
        Ok(store)
    }

    /// Opens the directory unless there is none, and so no lease.
    pub fn open_existing(
        dir: &Path,
        patience: Duration,
        boot: Boot,
        sets: usize,
    ) -> Result<Option<Self>, Failure> {
        if dir.is_dir() { Self::open(dir, patience, boot, sets).map(Some) } else { Ok(None) }
    }

    /// Reserves one address out of each set, or none at all.
    pub fn reserve(
        &mut self,
        owner: &LeaseOwner,
        sets: &[RangeSet],
        requested: &[IpAddr],
    ) -> Result<Vec<Choice>, Failure> {
        let held = self.find_by_index(owner)?;
        if let Some(addr) = held.iter().find(|a| sets.iter().any(|set| set.range_of(**a).is_some())) {
            return Err(Failure::internal(format!(
                "container {} holds {addr} for {} already; an interface is added once and then deleted",
                owner.container,
                owner.ifname.as_deref().unwrap_or_default(),
            )));
        }
        let chosen = match self.choose(sets, requested) {
            Err(failure) if failure.code == Failure::NO_ADDRESS && self.reclaim()? => {
                self.choose(sets, requested)?
            }
            other => other?,
        };
        let mut addrs = held;
        addrs.extend(chosen.iter().map(|c| c.address.ip()));
        // The index first: a lease that it does not know would not be found again.
        let entry = Entry { addrs, before_boot: false };
        self.index.put(owner, &entry).map_err(|e| self.files.failed("the index", e))?;
        for (set, choice) in chosen.iter().enumerate() {
            if let Err(failure) = self.files.write(owner, choice.address.ip(), &self.index.scratch()) {
                for made in &chosen[..set] {
                    let _ = self.files.remove(made.address.ip());
                }
                return Err(failure);
            }
            self.files.set_last_reserved(set, choice.address.ip());
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
            self.files.remove(addr)?;
        }
        self.index.remove(owner);
        self.index.remove(&old);
        self.settle();
        Ok(())
    }

    /// Frees every address whose owner is not to be kept, and those of no owner.
    pub fn retain(&mut self, keep: impl Fn(&LeaseOwner) -> bool) -> Result<(), Failure> {
        for (addr, lease) in self.files.leases()? {
            match lease {
                Lease::Held(owner) if keep(&owner) => {}
                Lease::Held(owner) => {
                    self.files.remove(addr)?;
                    self.index.remove(&owner);
                }
                Lease::Unfinished => self.files.remove(addr)?,
            }
        }
        self.settle();
        Ok(())
    }

    /// The addresses an owner holds. Leases of very old plugins count when there is none of today's.
    ///
    /// That the index knows of none is not the last word: a file whose content was rewritten in place leaves no trace in
    /// the directory's state, and a lease that nobody finds is never freed.
    pub fn find(&self, owner: &LeaseOwner) -> Result<Vec<IpAddr>, Failure> {
        let held = self.find_by_index(owner)?;
        if !held.is_empty() {
            return Ok(held);
        }
        let old = owner.without_ifname();
        let is_own = |lease: &Lease| lease.is_held_by(owner) || lease.is_held_by(&old);
        if !self.files.leases()?.iter().any(|(_, lease)| is_own(lease)) {
            return Ok(held);
        }
        self.rebuild(true, false)?;
        self.find_by_index(owner)
    }

    /// The same in the cheap way that ADD needs, whose owner usually holds nothing. An entry that does not agree with the
    /// files shows that they were changed behind the index, which is then built anew.
    fn find_by_index(&self, owner: &LeaseOwner) -> Result<Vec<IpAddr>, Failure> {
        match self.look_up(owner)? {
            (held, true) => Ok(held),
            (_, false) => {
                self.rebuild(true, false)?;
                self.look_up(owner).map(|(held, _)| held)
            }
        }
    }

    /// What the index says that the files confirm, and whether they confirmed all of it.
    fn look_up(&self, owner: &LeaseOwner) -> Result<(Vec<IpAddr>, bool), Failure> {
        let mut agrees = true;
        for owner in [owner, &owner.without_ifname()] {
            let mut held = Vec::new();
            for addr in self.index.get(owner).map(|e| e.addrs).unwrap_or_default() {
                match self.files.read(addr)?.is_some_and(|lease| lease.is_held_by(owner)) {
                    true => held.push(addr),
                    false => agrees = false,
                }
            }
            if !held.is_empty() {
                return Ok((held, agrees));
            }
        }
        Ok((Vec::new(), agrees))
    }

    fn choose(&self, sets: &[RangeSet], requested: &[IpAddr]) -> Result<Vec<Choice>, Failure> {
        let mut probed = 0;
        let mut taken: Option<HashSet<IpAddr>> = None;
        let is_free = |addr: IpAddr| {
            probed += 1;
            if probed <= PROBES {
                return self.files.is_taken(addr).map(|taken| !taken);
            }
            let list = match taken.take() {
                Some(list) => list,
                None => self.files.addresses()?.into_iter().collect(),
            };
            let free = !list.contains(&addr);
            taken = Some(list);
            Ok(free)
        };
        choose(sets, requested, |set| self.files.last_reserved(set), is_free)
    }

    /// Frees what nobody can be using: leases of an earlier boot, and files whose writer died before it
    /// filled them. Tells whether there was any.
    fn reclaim(&self) -> Result<bool, Failure> {
        let mut any = false;
        for (addr, lease) in self.files.leases()? {
            let owner = match lease {
                Lease::Held(owner) if self.index.get(&owner).is_some_and(|e| e.before_boot) => Some(owner),
                Lease::Held(_) => continue,
                Lease::Unfinished => None,
            };
            self.files.remove(addr)?;
            if let Some(owner) = owner {
                self.index.remove(&owner);
            }
            any = true;
        }
        Ok(any)
    }

    /// Brings the index up to date if anyone else changed the leases, or if the host was booted.
    fn refresh(&self) -> Result<(), Failure> {
        let stamp = self.index.stamp().unwrap_or_default();
        let state = self.files.state(self.sets)?;
        let (boot, old_state) = stamp.split_once('\n').unwrap_or_default();
        let (same_boot, unchanged) = (boot == self.boot.id, old_state == state);
        if same_boot && unchanged {
            return Ok(());
        }
        self.rebuild(same_boot, unchanged)
    }

    /// Builds the index from the files.
    fn rebuild(&self, same_boot: bool, unchanged: bool) -> Result<(), Failure> {
        let mut owners: HashMap<LeaseOwner, Entry> = HashMap::new();
        for (addr, lease) in self.files.leases()? {
            let Lease::Held(owner) = lease else { continue };
            let before_boot = match same_boot {
                // What was known in this boot keeps its mark; what has appeared since is of this boot.
                true => self.index.get(&owner).is_some_and(|e| e.before_boot),
                // If nothing was changed since a former boot, all of it is former. Otherwise the time tells.
                false => unchanged || self.files.written(addr).is_some_and(|time| time < self.boot.began),
            };
            let entry = owners.entry(owner).or_insert(Entry { addrs: Vec::new(), before_boot: true });
            entry.addrs.push(addr);
            entry.before_boot &= before_boot;
        }
        for (owner, entry) in &owners {
            if self.index.get(owner).as_ref() != Some(entry) {
                self.index.put(owner, entry).map_err(|e| self.files.failed("the index", e))?;
            }
        }
        self.index.retain(owners.keys());
        self.settle();
        Ok(())
    }

    /// Notes that the index is complete as of now. Should that fail, the next plugin builds it anew.
    fn settle(&self) {
        if let Ok(state) = self.files.state(self.sets) {
            let _ = self.index.set_stamp(&format!("{}\n{state}", self.boot.id));
        }
    }
}
