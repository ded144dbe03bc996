//! The lease table: all known leases, which of them are served, and why the others are rejected. A lease that does not fit
//! is left out with a reason, and the others are not affected. One change costs the same with two leases and with thousands.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::Mac;

use super::index::LeaseIndex;
use super::lease_entry::LeaseEntry;
use super::validate::{self, Requirements};
use super::{Lease, LeasedSubnet};

/// After adding more leases than this at once, the trees are rebuilt to save memory.
const CROWD: usize = 256;

/// A lease as its source reported it; Err says why it could not be read.
pub type ReportedLease = Result<Lease, String>;

/// New state of leases, by holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseUpdate {
    /// All leases; those not listed are gone.
    Snapshot(BTreeMap<Arc<str>, ReportedLease>),
    /// Only leases that changed; None is one that is gone.
    Changes(BTreeMap<Arc<str>, Option<ReportedLease>>),
}

/// One peer before and after an update; None where it is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerChange {
    pub holder: Arc<str>,
    pub before: Option<Lease>,
    pub after: Option<Lease>,
}

#[derive(Debug, Default)]
pub struct LeaseTable {
    /// None until this host's own settings are known; until then leases are stored but not served.
    requirements: Option<Requirements>,
    /// Boxed, because tree nodes have unused slots.
    entries: BTreeMap<Arc<str>, Box<LeaseEntry>>,
    /// Only of served leases.
    index: LeaseIndex,
    /// Holders that are rejected because another holds their subnet or MAC; they are checked again when something is freed.
    contested: BTreeSet<Arc<str>>,
    /// Holders with a rejection.
    rejected: BTreeSet<Arc<str>>,
    /// Rejections that were not logged yet.
    new_rejections: Vec<String>,
}

impl LeaseTable {
    /// Validates all leases again if the requirements changed, and returns whether they did. Served leases go first, so that
    /// a new one takes nothing from them.
    pub fn set_requirements(&mut self, requirements: &Requirements) -> bool {
        if self.requirements.as_ref() == Some(requirements) {
            return false;
        }
        self.requirements = Some(requirements.clone());
        let mut order: Vec<(bool, Arc<str>)> =
            self.entries.iter().map(|(holder, e)| (!(e.serves4 || e.serves6), holder.clone())).collect();
        order.sort();
        self.index = LeaseIndex::default();
        for (_, holder) in order {
            self.serve_if_valid(&holder);
        }
        true
    }

    /// Applies an update and returns the peers that changed. Unchanged leases cost nothing.
    pub fn apply(&mut self, update: LeaseUpdate) -> Vec<PeerChange> {
        let mut before: BTreeMap<Arc<str>, Option<Lease>> = BTreeMap::new();
        let update = match update {
            LeaseUpdate::Changes(update) => update,
            LeaseUpdate::Snapshot(mut all) => {
                let gone = self.entries.keys().filter(|holder| !all.contains_key(*holder));
                let gone: Vec<_> = gone.map(|holder| (holder.clone(), None)).collect();
                all.retain(|holder, reported| self.entries.get(holder).is_none_or(|e| !e.is(reported)));
                all.into_iter().map(|(holder, reported)| (holder, Some(reported))).chain(gone).collect()
            }
        };
        // Known holders go before new ones. What a holder gives up is free for both.
        let (mut known, mut newcomers) = (Vec::new(), Vec::new());
        for (holder, reported) in update {
            match (self.entries.get(&holder), reported) {
                (None, None) => {}
                (Some(entry), Some(reported)) if entry.is(&reported) => {}
                // Copied, so that long-lived names lie together in memory, apart from the parsed input.
                (None, Some(reported)) => newcomers.push((Arc::from(&*holder), reported)),
                (Some(entry), reported) => {
                    before.insert(holder.clone(), entry.peer(&holder));
                    self.release(&holder);
                    match reported {
                        Some(reported) => known.push((holder, reported)),
                        None => self.remove(&holder),
                    }
                }
            }
        }
        let freed = !before.is_empty();
        let crowd = newcomers.len() > CROWD;
        // Allocate what is freed soon before what stays, so that they lie apart in memory.
        for (holder, _) in known.iter().chain(&newcomers) {
            before.entry(holder.clone()).or_default();
        }
        for (holder, reported) in known.into_iter().chain(newcomers) {
            let rejection = self.entries.get_mut(&holder).and_then(|e| e.rejection.take());
            self.entries.insert(holder.clone(), LeaseEntry::new(reported, rejection));
            self.serve_if_valid(&holder);
        }
        if freed {
            for holder in self.contested.clone() {
                before.entry(holder.clone()).or_insert_with(|| self.peer(&holder));
                self.release(&holder);
                self.serve_if_valid(&holder);
            }
        }
        if crowd {
            // Sorted insertion leaves tree nodes half empty; building from sorted input fills them.
            self.entries = std::mem::take(&mut self.entries).into_iter().collect();
            self.index.shrink();
        }
        let changes = before.into_iter().map(|(holder, before)| PeerChange {
            after: self.peer(&holder),
            holder,
            before,
        });
        changes.filter(|change| change.before != change.after).collect()
    }

    /// The served part of a holder's lease.
    pub fn peer(&self, holder: &str) -> Option<Lease> {
        let (holder, entry) = self.entries.get_key_value(holder)?;
        entry.peer(holder)
    }

    /// All peers, by holder.
    pub fn peers(&self) -> impl Iterator<Item = Lease> + '_ {
        self.entries.iter().filter_map(|(holder, entry)| entry.peer(holder))
    }

    /// How many leases there are, served or not.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Up to `count` holders that follow `holder` in order.
    pub fn after(&self, holder: Option<&Arc<str>>, count: usize) -> Vec<Arc<str>> {
        let from = holder.map_or(Bound::Unbounded, |holder| Bound::Excluded(holder.clone()));
        self.entries.range((from, Bound::Unbounded)).take(count).map(|(holder, _)| holder.clone()).collect()
    }

    /// All leases that could be read, served or not. These are saved to disk.
    pub fn readable(&self) -> impl Iterator<Item = Lease> + '_ {
        self.entries.iter().filter_map(|(holder, entry)| entry.reported(holder).ok())
    }

    /// The lease that holds exactly this subnet.
    pub fn by_subnet(&self, subnet: IpNetwork) -> Option<(&Arc<str>, &LeasedSubnet)> {
        let holder = self.index.by_subnet(subnet)?;
        Some((holder, self.entries.get(holder)?.leased_subnet(subnet.is_ipv4())?))
    }

    /// The lease whose subnet begins with this address, which is the address of its VTEP.
    pub fn by_first_address(&self, addr: IpAddr) -> Option<(&Arc<str>, &LeasedSubnet)> {
        let holder = self.index.by_first_address(addr)?;
        Some((holder, self.entries.get(holder)?.leased_subnet(addr.is_ipv4())?))
    }

    /// The lease with this VTEP MAC.
    pub fn by_mac(&self, mac: Mac, v4: bool) -> Option<(&Arc<str>, &LeasedSubnet)> {
        let holder = self.index.by_mac(mac, v4).next()?.1;
        Some((holder, self.entries.get(holder)?.leased_subnet(v4)?))
    }

    /// The served subnets of one public address.
    pub fn subnets_at(&self, public: IpAddr) -> impl Iterator<Item = IpNetwork> + '_ {
        self.index.subnets_at(public)
    }

    /// All served subnets, ordered by public address.
    pub fn all_by_public(&self) -> impl Iterator<Item = (IpAddr, IpNetwork)> + '_ {
        self.index.all_by_public()
    }

    /// Why leases are rejected.
    pub fn rejections(&self) -> impl Iterator<Item = &str> + '_ {
        self.rejected.iter().filter_map(|holder| self.entries.get(holder)?.rejection.as_deref())
    }

    /// How many leases are rejected, wholly or in part.
    pub fn rejected_count(&self) -> usize {
        self.rejected.len()
    }

    /// Whether an update differs from the table. Most updates of a Node do not touch its lease.
    pub fn changes_anything(&self, update: &LeaseUpdate) -> bool {
        let differs = |holder: &Arc<str>, reported: Option<&ReportedLease>| match (
            self.entries.get(holder),
            reported,
        ) {
            (Some(entry), Some(reported)) => !entry.is(reported),
            (entry, reported) => entry.is_some() || reported.is_some(),
        };
        match update {
            LeaseUpdate::Snapshot(_) => true,
            LeaseUpdate::Changes(some) => {
                some.iter().any(|(holder, reported)| differs(holder, reported.as_ref()))
            }
        }
    }

    /// Rejections since the last call.
    pub fn new_rejections(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new_rejections)
    }

    fn remove(&mut self, holder: &str) {
        self.entries.remove(holder);
        self.contested.remove(holder);
        self.rejected.remove(holder);
    }

    /// Stops serving a holder.
    fn release(&mut self, holder: &Arc<str>) {
        let Some(entry) = self.entries.get_mut(holder) else { return };
        for v4 in [true, false] {
            if let Some(leased) = entry.leased_subnet(v4) {
                self.index.remove(holder, leased);
            }
        }
        (entry.serves4, entry.serves6) = (false, false);
    }

    /// Validates a lease and serves the subnets that pass.
    fn serve_if_valid(&mut self, holder: &Arc<str>) {
        let (Some(entry), Some(requirements)) = (self.entries.get(holder), &self.requirements) else {
            return;
        };
        let mut contested = false;
        let mut against: Vec<String> = Vec::new();
        let mut serves = [false, false];
        let reported = entry.reported(holder).map_err(str::to_owned);
        match &reported {
            Err(why) => against.push(why.clone()),
            Ok(lease) => match validate::lease_problem(lease, requirements) {
                Some(why) => against.push(why),
                None => {
                    for (served, leased) in serves.iter_mut().zip([&lease.v4, &lease.v6]) {
                        let Some(leased) = leased else { continue };
                        let why = validate::subnet_problem(leased, requirements);
                        contested |= why.is_none() && self.index.conflict(leased).is_some();
                        match why.or_else(|| self.index.conflict(leased)) {
                            None => *served = true,
                            Some(why) => against.push(format!("{holder} is left out: {why}")),
                        }
                    }
                }
            },
        }
        if let Ok(lease) = &reported {
            for (leased, served) in [&lease.v4, &lease.v6].into_iter().zip(serves) {
                if let Some(leased) = leased.as_ref().filter(|_| served) {
                    self.index.insert(holder, leased);
                }
            }
        }
        match contested {
            true => self.contested.insert(holder.clone()),
            false => self.contested.remove(holder),
        };
        self.set_served(holder, serves, (!against.is_empty()).then(|| against.join("; ")));
    }

    fn set_served(&mut self, holder: &Arc<str>, serves: [bool; 2], rejection: Option<String>) {
        let Some(entry) = self.entries.get_mut(holder) else { return };
        [entry.serves4, entry.serves6] = serves;
        match &rejection {
            Some(why) if entry.rejection.as_deref() != Some(why) => self.new_rejections.push(why.clone()),
            _ => {}
        }
        match rejection.is_some() {
            true => self.rejected.insert(holder.clone()),
            false => self.rejected.remove(holder),
        };
        entry.rejection = rejection.map(Into::into);
    }
}

#[cfg(test)]
#[path = "lease_table_tests.rs"]
mod tests;
