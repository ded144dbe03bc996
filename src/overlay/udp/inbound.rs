//! What becomes of a packet that a peer sent: whether it may come in, and with which others it is written to the device.

use std::net::IpAddr;
use std::ops::Range;

use keelson_netkit::IpNet;

use crate::counters::Reason;
use crate::header::{self, Header};
use crate::icmp::{self, Trouble};
use crate::merge::Merge;
use crate::offload;
use crate::outbound::Outcome;
use crate::peers::Table;
use crate::prefix::Prefixes;

pub struct Inbound {
    merge: Merge,
    own: Prefixes,
    /// Whether destinations are checked at all.
    closed: bool,
    known_source: Option<(IpAddr, u32)>,
    known_destination: Option<IpAddr>,
    slices: Vec<Range<usize>>,
    /// What the sender of the packet that was dropped last is to hear of it, if anything.
    pub told: Option<icmp::Message>,
}

impl Inbound {
    pub fn new(own: &[IpNet], udp: bool) -> Inbound {
        let mut prefixes = Prefixes::default();
        for net in own {
            prefixes.insert(*net, 0);
        }
        Inbound {
            merge: Merge::new(udp),
            own: prefixes,
            closed: !own.is_empty(),
            known_source: None,
            known_destination: None,
            slices: Vec::with_capacity(crate::merge::MOST_MERGED),
            told: None,
        }
    }

    /// Begins a batch: what was looked up in another state of the peers counts no more.
    pub fn begin(&mut self) {
        self.known_source = None;
        self.known_destination = None;
    }

    pub fn is_full(&self) -> bool {
        self.merge.is_full()
    }

    pub fn is_empty(&self) -> bool {
        self.merge.is_empty()
    }

    /// Takes the datagram at `range` of `arena`, which came from `peer`; the caller has asked `is_full` before.
    pub fn accept(
        &mut self,
        table: &Table,
        arena: &mut [u8],
        range: Range<usize>,
        peer: u32,
        congested: bool,
    ) -> Outcome {
        let dropped = Outcome::Dropped;
        self.told = None;
        let Some(packet) = arena.get_mut(range.clone()) else { return dropped(Reason::Truncated) };
        let ip = match Header::read(packet) {
            Ok(ip) if ip.total == packet.len() => ip,
            Ok(_) => return dropped(Reason::Oversized),
            Err(reason) => return dropped(reason),
        };
        if self.known_source != Some((ip.source, peer)) {
            if table.find(ip.source) != Some(peer) {
                return dropped(Reason::ForeignSource);
            }
            self.known_source = Some((ip.source, peer));
        }
        if self.closed && self.known_destination != Some(ip.destination) {
            if self.own.find(ip.destination).is_none() {
                return dropped(Reason::ForeignDestination);
            }
            self.known_destination = Some(ip.destination);
        }
        if ip.hops <= 1 {
            self.told = icmp::message(packet, &ip, ip.total, Trouble::HopsExceeded);
            return dropped(Reason::HopsExceeded);
        }
        if congested && !header::mark_congestion(packet) {
            return dropped(Reason::Congested);
        }
        header::count_hop(packet);
        self.merge.push(arena, range, &ip);
        Outcome::Taken
    }

    /// How many packets are to be written.
    pub fn groups(&self) -> usize {
        self.merge.groups()
    }

    /// The packet number `n`: its offload header, and the slices of the arena that it consists of.
    pub fn group(&mut self, n: usize, arena: &mut [u8]) -> ([u8; offload::LENGTH], &[Range<usize>]) {
        let header = self.merge.finish(n, arena, &mut self.slices);
        (header, &self.slices)
    }

    pub fn clear(&mut self) {
        self.merge.clear();
    }
}
