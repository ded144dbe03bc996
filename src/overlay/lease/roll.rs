//! Who holds what, kept as leases come and go: which of them can be served, and what is said against the others. What does
//! not fit is left out, by name and reason, and the rest goes on. One change costs the same among two leases and among
//! thousands.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use keelson_netkit::{IpNet, Mac};

use super::entry::Entry;
use super::index::Index;
use super::objection::{self, Measure};
use super::{Lease, Place};

/// From how many newcomers at once on it is worth it to look to memory.
const CROWD: usize = 256;

/// A lease as it was heard; one that could not be read, with what is wrong.
pub type Heard = Result<Lease, String>;

/// Leases that changed, by holder; None is one that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// These and no others.
    Whole(BTreeMap<Arc<str>, Heard>),
    Some(BTreeMap<Arc<str>, Option<Heard>>),
}

/// What became of one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub holder: Arc<str>,
    pub before: Option<Lease>,
    pub after: Option<Lease>,
}

#[derive(Debug, Default)]
pub struct Roll {
    /// None until it is known what leases are measured by; until then they are only kept.
    measure: Option<Measure>,
    /// Boxed, because a tree has room for more than it holds.
    entries: BTreeMap<Arc<str>, Box<Entry>>,
    /// What is served, by all that it can be asked for.
    index: Index,
    /// Those that wait for what another holds.
    waiting: BTreeSet<Arc<str>>,
    /// Those that something is said against.
    refused: BTreeSet<Arc<str>>,
    /// What was not said before.
    fresh: Vec<String>,
}

impl Roll {
    /// Measures all leases anew if what they are measured by changed; tells whether that was so. Those that are served
    /// come first: a newcomer takes nothing from them.
    pub fn settle(&mut self, measure: &Measure) -> bool {
        if self.measure.as_ref() == Some(measure) {
            return false;
        }
        self.measure = Some(measure.clone());
        let mut order: Vec<(bool, Arc<str>)> =
            self.entries.iter().map(|(holder, e)| (!(e.serves4 || e.serves6), holder.clone())).collect();
        order.sort();
        self.index = Index::default();
        for (_, holder) in order {
            self.admit(&holder);
        }
        true
    }

    /// Takes in what was heard. Leases that are as they were cost nothing.
    pub fn take(&mut self, news: News) -> Vec<Change> {
        let mut before: BTreeMap<Arc<str>, Option<Lease>> = BTreeMap::new();
        let news = match news {
            News::Some(news) => news,
            News::Whole(mut all) => {
                let gone = self.entries.keys().filter(|holder| !all.contains_key(*holder));
                let gone: Vec<_> = gone.map(|holder| (holder.clone(), None)).collect();
                all.retain(|holder, heard| self.entries.get(holder).is_none_or(|e| !e.is(heard)));
                all.into_iter().map(|(holder, heard)| (holder, Some(heard))).chain(gone).collect()
            }
        };
        // Who is known keeps its place before newcomers, and what is given up is free for both.
        let (mut known, mut newcomers) = (Vec::new(), Vec::new());
        for (holder, heard) in news {
            match (self.entries.get(&holder), heard) {
                (None, None) => {}
                (Some(entry), Some(heard)) if entry.is(&heard) => {}
                // Copied, so that what is kept for long lies together, not where it was heard.
                (None, Some(heard)) => newcomers.push((Arc::from(&*holder), heard)),
                (Some(entry), heard) => {
                    before.insert(holder.clone(), entry.peer(&holder));
                    self.release(&holder);
                    match heard {
                        Some(heard) => known.push((holder, heard)),
                        None => self.forget(&holder),
                    }
                }
            }
        }
        let freed = !before.is_empty();
        let crowd = newcomers.len() > CROWD;
        // First all of what is soon given back, then what stays, so that they lie apart.
        for (holder, _) in known.iter().chain(&newcomers) {
            before.entry(holder.clone()).or_default();
        }
        for (holder, heard) in known.into_iter().chain(newcomers) {
            let complaint = self.entries.get_mut(&holder).and_then(|e| e.complaint.take());
            self.entries.insert(holder.clone(), Entry::new(heard, complaint));
            self.admit(&holder);
        }
        if freed {
            for holder in self.waiting.clone() {
                before.entry(holder.clone()).or_insert_with(|| self.peer(&holder));
                self.release(&holder);
                self.admit(&holder);
            }
        }
        if crowd {
            // A tree that grew in its order is half empty; one that is made of its order is full.
            self.entries = std::mem::take(&mut self.entries).into_iter().collect();
            self.index.pack();
        }
        let changes =
            before.into_iter().map(|(holder, before)| Change { after: self.peer(&holder), holder, before });
        changes.filter(|change| change.before != change.after).collect()
    }

    /// The lease of a holder, as far as it is served.
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

    /// The next holders in their order.
    pub fn after(&self, holder: Option<&Arc<str>>, count: usize) -> Vec<Arc<str>> {
        let from = holder.map_or(Bound::Unbounded, |holder| Bound::Excluded(holder.clone()));
        self.entries.range((from, Bound::Unbounded)).take(count).map(|(holder, _)| holder.clone()).collect()
    }

    /// All leases that could be read, served or not: what is to be remembered.
    pub fn readable(&self) -> impl Iterator<Item = Lease> + '_ {
        self.entries.iter().filter_map(|(holder, entry)| entry.heard(holder).ok())
    }

    /// The place that holds exactly this subnet.
    pub fn at(&self, subnet: IpNet) -> Option<(&Arc<str>, &Place)> {
        let holder = self.index.at(subnet)?;
        Some((holder, self.entries.get(holder)?.place(subnet.is_v4())?))
    }

    /// The place whose subnet begins with this address, which is that of the far end of its tunnel.
    pub fn behind(&self, addr: IpAddr) -> Option<(&Arc<str>, &Place)> {
        let holder = self.index.beginning_with(addr)?;
        Some((holder, self.entries.get(holder)?.place(addr.is_ipv4())?))
    }

    /// The place of a tunnel's end.
    pub fn of_mac(&self, mac: Mac, v4: bool) -> Option<(&Arc<str>, &Place)> {
        let holder = self.index.of_mac(mac, v4).next()?.1;
        Some((holder, self.entries.get(holder)?.place(v4)?))
    }

    /// The subnets that are served under one public address.
    pub fn under(&self, public: IpAddr) -> impl Iterator<Item = IpNet> + '_ {
        self.index.under(public)
    }

    /// All that is served, by public address.
    pub fn published(&self) -> impl Iterator<Item = (IpAddr, IpNet)> + '_ {
        self.index.published()
    }

    /// What is said against leases.
    pub fn complaints(&self) -> impl Iterator<Item = &str> + '_ {
        self.refused.iter().filter_map(|holder| self.entries.get(holder)?.complaint.as_deref())
    }

    /// How many leases something is said against.
    pub fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Whether any of it is different from what is known. Most of what is heard of a node is not about its lease.
    pub fn is_new(&self, news: &News) -> bool {
        let differs = |holder: &Arc<str>, heard: Option<&Heard>| match (self.entries.get(holder), heard) {
            (Some(entry), Some(heard)) => !entry.is(heard),
            (entry, heard) => entry.is_some() || heard.is_some(),
        };
        match news {
            News::Whole(_) => true,
            News::Some(some) => some.iter().any(|(holder, heard)| differs(holder, heard.as_ref())),
        }
    }

    /// What is said against leases since this was last asked.
    pub fn fresh_complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.fresh)
    }

    fn forget(&mut self, holder: &str) {
        self.entries.remove(holder);
        self.waiting.remove(holder);
        self.refused.remove(holder);
    }

    /// Gives up what a holder is served with.
    fn release(&mut self, holder: &Arc<str>) {
        let Some(entry) = self.entries.get_mut(holder) else { return };
        for v4 in [true, false] {
            if let Some(place) = entry.place(v4) {
                self.index.release(holder, place);
            }
        }
        (entry.serves4, entry.serves6) = (false, false);
    }

    /// Serves what of a lease can be served.
    fn admit(&mut self, holder: &Arc<str>) {
        let (Some(entry), Some(measure)) = (self.entries.get(holder), &self.measure) else { return };
        let mut waits = false;
        let mut against: Vec<String> = Vec::new();
        let mut serves = [false, false];
        let heard = entry.heard(holder).map_err(str::to_owned);
        match &heard {
            Err(why) => against.push(why.clone()),
            Ok(lease) => match objection::to_lease(lease, measure) {
                Some(why) => against.push(why),
                None => {
                    for (served, place) in serves.iter_mut().zip([&lease.v4, &lease.v6]) {
                        let Some(place) = place else { continue };
                        let why = objection::to_place(place, measure);
                        waits |= why.is_none() && self.index.contested(place).is_some();
                        match why.or_else(|| self.index.contested(place)) {
                            None => *served = true,
                            Some(why) => against.push(format!("{holder} is left out: {why}")),
                        }
                    }
                }
            },
        }
        if let Ok(lease) = &heard {
            for (place, served) in [&lease.v4, &lease.v6].into_iter().zip(serves) {
                if let Some(place) = place.as_ref().filter(|_| served) {
                    self.index.hold(holder, place);
                }
            }
        }
        match waits {
            true => self.waiting.insert(holder.clone()),
            false => self.waiting.remove(holder),
        };
        self.note(holder, serves, (!against.is_empty()).then(|| against.join("; ")));
    }

    fn note(&mut self, holder: &Arc<str>, serves: [bool; 2], complaint: Option<String>) {
        let Some(entry) = self.entries.get_mut(holder) else { return };
        [entry.serves4, entry.serves6] = serves;
        match &complaint {
            Some(why) if entry.complaint.as_deref() != Some(why) => self.fresh.push(why.clone()),
            _ => {}
        }
        match complaint.is_some() {
            true => self.refused.insert(holder.clone()),
            false => self.refused.remove(holder),
        };
        entry.complaint = complaint.map(Into::into);
    }
}

#[cfg(test)]
#[path = "roll_tests.rs"]
mod tests;
