//! The peers: who they are, what they hold, and how the path sees changes without ever waiting.
//!
//! There are two copies of the table. The path reads one; a change goes into the other, the two are swapped, and the same
//! change is made up for in the first before the next one. So a change costs the same with two peers and with five
//! thousand, and a reader holds on to its copy for the length of a batch only.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use keelson_kit::cidr::{IpNetwork, truncated};

use crate::peer::PeerState;
use crate::prefix_table::{HashSeed, PrefixTable};

/// A host of the overlay, as in its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Where its datagrams come from and go to.
    pub endpoint: SocketAddr,
    pub subnets: Vec<IpNetwork>,
}

/// Two peers claim one subnet; whoever had it first keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetConflict {
    pub subnet: IpNetwork,
    pub holder: SocketAddr,
    pub refused: SocketAddr,
}

/// The peers of a path; shared with its threads.
#[derive(Debug)]
pub struct Peers {
    current: RwLock<Arc<PeerTable>>,
    spare: Mutex<SpareTable>,
}

/// The copy that nobody reads, and what it has missed. None: to be copied anew.
#[derive(Debug, Default)]
struct SpareTable {
    table: Option<Arc<PeerTable>>,
    missed: Vec<TableChange>,
}

#[derive(Debug, Clone)]
enum TableChange {
    Set(Peer, Arc<PeerState>),
    Remove(SocketAddr),
}

/// How long a change waits for readers of the spare copy before it makes a new one instead.
const SPARE_TIMEOUT: Duration = Duration::from_millis(5);

impl Default for Peers {
    fn default() -> Self {
        Peers { current: RwLock::new(Arc::new(PeerTable::default())), spare: Mutex::default() }
    }
}

impl Peers {
    /// Makes `peers` the whole list. Peers that stay keep what was learned of their paths.
    pub fn replace(&self, peers: Vec<Peer>) -> Vec<SubnetConflict> {
        let mut spare = self.lock_spare();
        let before = self.load();
        let mut table = PeerTable { entries: Vec::with_capacity(peers.len()), ..PeerTable::default() };
        let mut conflicts = Vec::new();
        for peer in peers {
            let state =
                before.find_endpoint(peer.endpoint).map(|n| Arc::clone(&before.entries[n as usize].state));
            conflicts.extend(table.set(peer, state.unwrap_or_default()));
        }
        *spare = SpareTable::default();
        self.publish(Arc::new(table));
        conflicts
    }

    /// Adds a peer, or changes the one with the same endpoint.
    pub fn set(&self, peer: Peer) -> Vec<SubnetConflict> {
        let state = {
            let now = self.load();
            now.find_endpoint(peer.endpoint).map(|n| Arc::clone(&now.entries[n as usize].state))
        };
        self.change(TableChange::Set(peer, state.unwrap_or_default())).1
    }

    /// Takes a peer out; false when there was none.
    pub fn remove(&self, endpoint: SocketAddr) -> bool {
        self.change(TableChange::Remove(endpoint)).0
    }

    /// The table as it is now. To be held for one batch, so that changes find their spare copy free.
    pub(crate) fn load(&self) -> Arc<PeerTable> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, change: TableChange) -> (bool, Vec<SubnetConflict>) {
        let mut spare = self.lock_spare();
        let missed = std::mem::take(&mut spare.missed);
        let mut table = spare.table.take().unwrap_or_else(|| Arc::new(PeerTable::clone(&self.load())));
        let deadline = Instant::now() + SPARE_TIMEOUT;
        let outcome = loop {
            if let Some(table) = Arc::get_mut(&mut table) {
                for change in missed {
                    table.apply(change);
                }
                break table.apply(change.clone());
            }
            if Instant::now() > deadline {
                let mut copy = PeerTable::clone(&self.load());
                let outcome = copy.apply(change.clone());
                table = Arc::new(copy);
                break outcome;
            }
            thread::yield_now();
        };
        spare.table = Some(self.publish(table));
        spare.missed.push(change);
        outcome
    }

    fn publish(&self, table: Arc<PeerTable>) -> Arc<PeerTable> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, table)
    }

    fn lock_spare(&self) -> MutexGuard<'_, SpareTable> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One version of the peer list, with the path's lookup tables.
#[derive(Debug, Clone, Default)]
pub struct PeerTable {
    entries: Vec<PeerEntry>,
    free: Vec<u32>,
    prefixes: PrefixTable,
    endpoints: HashMap<Endpoint, u32, HashSeed>,
}

#[derive(Debug, Clone)]
pub struct PeerEntry {
    pub endpoint: SocketAddr,
    pub subnets: Vec<IpNetwork>,
    pub state: Arc<PeerState>,
}

impl PeerTable {
    /// The peer that holds `address`.
    pub fn find(&self, address: IpAddr) -> Option<u32> {
        self.prefixes.find(address)
    }

    pub fn find_endpoint(&self, endpoint: SocketAddr) -> Option<u32> {
        self.endpoints.get(&Endpoint::from(endpoint)).copied()
    }

    pub fn entry(&self, number: u32) -> Option<&PeerEntry> {
        self.entries.get(number as usize)
    }

    /// One more than the highest number that a peer can have now.
    pub fn numbers(&self) -> usize {
        self.entries.len()
    }

    fn apply(&mut self, change: TableChange) -> (bool, Vec<SubnetConflict>) {
        match change {
            TableChange::Set(peer, state) => (true, self.set(peer, state)),
            TableChange::Remove(endpoint) => (self.remove(endpoint), Vec::new()),
        }
    }

    fn set(&mut self, peer: Peer, state: Arc<PeerState>) -> Vec<SubnetConflict> {
        self.remove(peer.endpoint);
        let number = self.free.pop().unwrap_or(self.entries.len() as u32);
        let mut conflicts = Vec::new();
        let mut held = Vec::with_capacity(peer.subnets.len());
        for subnet in peer.subnets.iter().copied().map(truncated) {
            match self.prefixes.get(subnet).and_then(|holder| self.entry(holder)) {
                // The same subnet twice in one lease is no conflict.
                Some(_) if held.contains(&subnet) => {}
                Some(holder) => {
                    conflicts.push(SubnetConflict {
                        subnet,
                        holder: holder.endpoint,
                        refused: peer.endpoint,
                    });
                }
                None => {
                    self.prefixes.insert(subnet, number);
                    held.push(subnet);
                }
            }
        }
        let entry = PeerEntry { endpoint: peer.endpoint, subnets: held, state };
        match self.entries.get_mut(number as usize) {
            Some(slot) => *slot = entry,
            None => self.entries.push(entry),
        }
        self.endpoints.insert(peer.endpoint.into(), number);
        conflicts
    }

    fn remove(&mut self, endpoint: SocketAddr) -> bool {
        let Some(number) = self.endpoints.remove(&Endpoint::from(endpoint)) else { return false };
        if let Some(entry) = self.entries.get_mut(number as usize) {
            for subnet in std::mem::take(&mut entry.subnets) {
                self.prefixes.remove(subnet);
            }
        }
        self.free.push(number);
        true
    }
}

/// An address and a port in half the room that the usual type takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Endpoint([u8; 16], u16);

impl From<SocketAddr> for Endpoint {
    fn from(endpoint: SocketAddr) -> Self {
        let address = match endpoint.ip() {
            IpAddr::V4(a) => a.to_ipv6_mapped(),
            IpAddr::V6(a) => a,
        };
        Endpoint(address.octets(), endpoint.port())
    }
}

impl Hash for Endpoint {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from_ne_bytes(self.0));
        state.write_u16(self.1);
    }
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
