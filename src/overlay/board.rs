//! What is known of the network just now, where all who tell of it can look: peers, how they are reached, what is wrong.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::config::Backend;
use crate::lease::{Lease, Roll};
use crate::plan::{Fallen, Role, Situation, TUN_NAME};
use crate::probe::Target;
use crate::prober::Book;

/// Shared by the engine, which keeps it, the prober, and whoever is asked.
pub struct Board {
    picture: Mutex<Picture>,
    book: Mutex<Book>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
pub struct Picture {
    pub roll: Roll,
    /// None until the interface to other hosts was found.
    pub situation: Option<Situation>,
    /// Who is reached by udp instead of the tunnel, as the kernel was told.
    pub fallen: Fallen,
    /// Peers with a place that the backend does not reach.
    pub unreachable: BTreeSet<Arc<str>>,
    pub head: Head,
}

/// What is told beside the peers.
#[derive(Debug, Clone, Default)]
pub struct Head {
    pub leases: &'static str,
    pub heard: bool,
    pub ready: bool,
    pub interface: String,
    pub public: Vec<String>,
    /// Found wrong in the last look, in words.
    pub problems: Vec<String>,
    pub repairs: u64,
    pub counters: Vec<(String, u64)>,
    /// Messages that the kernel was sent, and bytes that came back.
    pub traffic: (u64, u64),
}

impl Board {
    pub fn new() -> Arc<Self> {
        Arc::new(Board { picture: Mutex::default(), book: Mutex::default(), changed: watch::channel(()).0 })
    }

    /// Held for as long as it takes to compute, never while something is waited for.
    pub fn picture(&self) -> MutexGuard<'_, Picture> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody may want to know.
    pub fn ring(&self) {
        self.changed.send_replace(());
    }

    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    pub fn is_ready(&self) -> bool {
        self.picture().head.ready
    }

    /// One line for a condition: what is wrong first, and how much more there is. Does not look at all peers.
    pub fn summary(&self) -> Option<String> {
        let book = self.book();
        let picture = self.picture();
        let peer = |holder: &Arc<str>| {
            let problems = picture.problems(&book, &picture.roll.peer(holder)?);
            problems.into_iter().next()
        };
        let of_peers = || picture.unreachable.iter().chain(book.troubled()).find_map(peer);
        let first = picture.head.problems.first().cloned();
        let first =
            first.or_else(|| picture.roll.complaints().next().map(str::to_owned)).or_else(of_peers)?;
        let count = picture.head.problems.len()
            + picture.roll.refused()
            + picture.unreachable.len()
            + book.troubled().len();
        Some(match count {
            0 | 1 => first,
            more => format!("{first} (and {} more)", more - 1),
        })
    }
}

impl Picture {
    /// What is wrong with a peer, in words.
    pub fn problems(&self, book: &Book, peer: &Lease) -> Vec<String> {
        let Some(situation) = &self.situation else { return Vec::new() };
        let mut problems = Vec::new();
        for place in peer.places() {
            let v4 = place.subnet.is_v4();
            let fallen_back = self.fallen.contains(&(peer.holder.clone(), v4));
            match situation.carrier(place, fallen_back) {
                Err(why) => problems.push(why),
                Ok(carrier) => problems.extend(book.problem(&peer.holder, place, carrier, situation.mtu())),
            }
        }
        problems
    }

    /// Remembers whether a peer has a place that is not reached.
    pub fn note_reach(&mut self, holder: &Arc<str>) {
        let Some(situation) = &self.situation else { return };
        let peer = self.roll.peer(holder);
        let missed = |peer: &Lease| peer.places().any(|place| situation.carrier(place, false).is_err());
        match peer.is_some_and(|peer| missed(&peer)) {
            true => self.unreachable.insert(holder.clone()),
            false => self.unreachable.remove(holder),
        };
    }

    /// The same of all.
    pub fn note_reach_of_all(&mut self) {
        self.unreachable.clear();
        let holders: Vec<Arc<str>> = match self.situation.as_ref().map(|s| &s.backend) {
            Some(Backend::HostGw | Backend::None) => self.roll.peers().map(|peer| peer.holder).collect(),
            _ => return,
        };
        holders.iter().for_each(|holder| self.note_reach(holder));
    }

    /// What to send a peer, for each family that it is reached in.
    pub fn targets(&self, holder: &str) -> Vec<Target> {
        let (Some(situation), Some(peer)) = (&self.situation, self.roll.peer(holder)) else {
            return Vec::new();
        };
        let may_fall_back =
            matches!(&situation.backend, Backend::Vxlan(vxlan) if vxlan.fallback_port.is_some());
        let ways = situation.ways(&peer, &self.fallen);
        ways.map(|(place, carrier)| {
            let v4 = place.subnet.is_v4();
            let direct = carrier == crate::plan::Carrier::Direct;
            let tunnelled = may_fall_back && !direct;
            Target {
                holder: peer.holder.clone(),
                carrier,
                overlay: if direct { place.public } else { place.subnet.addr },
                public: place.public,
                device: Role::tunnel(v4).name(&situation.backend).filter(|_| tunnelled),
                fallback: TUN_NAME.try_into().ok().filter(|_| tunnelled),
                mtu: situation.mtu(),
            }
        })
        .collect()
    }
}
