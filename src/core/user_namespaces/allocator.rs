//! Who has which ids.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{BadRecord, read_record};
use super::{IdRange, UserNamespace};
use crate::hash::fnv1a_32;
use crate::ids::PodUid;

/// Gives ids to pods, and none to two of them.
#[derive(Debug, Clone)]
pub struct Allocator {
    range: IdRange,
    pub(super) held: BTreeMap<PodUid, UserNamespace>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("could not find an empty slot to allocate a user namespace")]
pub struct NoFreeIds;

impl Allocator {
    pub fn new(range: IdRange) -> Self {
        Self { range, held: BTreeMap::new() }
    }

    /// Takes a pod's ids from its file, which an agent before this one wrote. What contradicts the node's range or another pod is
    /// not taken: such a pod gets other ids with its next sandbox, unless one of it lives.
    pub fn restore(&mut self, uid: &PodUid, file: &[u8]) -> Result<(), BadRecord> {
        let Some(ids) = read_record(file)? else { return Ok(()) };
        if !self.range.has(ids) {
            return Err(BadRecord::Foreign(ids));
        }
        let other = self.held.iter().find(|(other, held)| *other != uid && held.overlaps(ids));
        if let Some((other, _)) = other {
            return Err(BadRecord::Taken { ids, other: other.to_string() });
        }
        self.held.insert(uid.clone(), ids);
        Ok(())
    }

    /// A sandbox of the pod lives with these ids, so they are its own, whatever anybody has written and whoever else may have
    /// them. Returns whether that is news.
    pub fn adopt(&mut self, uid: &PodUid, living: UserNamespace) -> bool {
        self.held.insert(uid.clone(), living) != Some(living)
    }

    pub fn held(&self, uid: &PodUid) -> Option<UserNamespace> {
        self.held.get(uid).copied()
    }

    /// The pod's ids, which it gets now if it has none.
    ///
    /// Where the search begins is the uid's choice: ids that a pod gave back are not the next pod's at once, which could then
    /// read what the other has left somewhere.
    pub fn assign(&mut self, uid: &PodUid) -> Result<UserNamespace, NoFreeIds> {
        if let Some(ids) = self.held(uid) {
            return Ok(ids);
        }
        let slots = self.range.slots();
        let taken: BTreeSet<u32> = self.held.values().flat_map(|ids| self.range.touched(*ids)).collect();
        let from = fnv1a_32(uid.as_str().as_bytes()) % slots.max(1);
        let free = (from..slots).chain(0..from).find(|slot| !taken.contains(slot)).ok_or(NoFreeIds)?;
        let ids = self.range.slot(free);
        self.held.insert(uid.clone(), ids);
        Ok(ids)
    }

    /// Nothing of the pod is left. Returns whether it had any.
    pub fn release(&mut self, uid: &PodUid) -> bool {
        self.held.remove(uid).is_some()
    }
}
