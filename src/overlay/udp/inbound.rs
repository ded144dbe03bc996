//! What becomes of a packet that a peer sent: whether it may come in, and with which others it is written to the device.

use std::net::IpAddr;
use std::ops::Range;

use keelson_kit::cidr::IpNetwork;

use crate::counters::DropReason;
use crate::header::{self, Header};
use crate::icmp_reply::{self, IcmpError, IcmpReply};
use crate::merge::Merge;
use crate::offload;
use crate::outbound::PacketOutcome;
use crate::peers::PeerTable;
use crate::prefix_table::PrefixTable;

pub struct Inbound {
    merge: Merge,
    own: PrefixTable,
    /// Whether destinations are checked at all.
    closed: bool,
    known_source: Option<(IpAddr, u32)>,
    known_destination: Option<IpAddr>,
    slices: Vec<Range<usize>>,
    /// The ICMP reply about the packet that was dropped last, if any.
    pub icmp_reply: Option<IcmpReply>,
}

impl Inbound {
    pub fn new(own: &[IpNetwork], udp: bool) -> Inbound {
        let mut prefixes = PrefixTable::default();
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
            icmp_reply: None,
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
        table: &PeerTable,
        arena: &mut [u8],
        range: Range<usize>,
        peer: u32,
        congested: bool,
    ) -> PacketOutcome {
        let dropped = PacketOutcome::Dropped;
        self.icmp_reply = None;
        let Some(packet) = arena.get_mut(range.clone()) else { return dropped(DropReason::Truncated) };
        let ip = match Header::read(packet) {
            Ok(ip) if ip.total == packet.len() => ip,
            Ok(_) => return dropped(DropReason::Oversized),
            Err(reason) => return dropped(reason),
        };
        if self.known_source != Some((ip.source, peer)) {
            if table.find(ip.source) != Some(peer) {
                return dropped(DropReason::ForeignSource);
            }
            self.known_source = Some((ip.source, peer));
        }
        if self.closed && self.known_destination != Some(ip.destination) {
            if self.own.find(ip.destination).is_none() {
                return dropped(DropReason::ForeignDestination);
            }
            self.known_destination = Some(ip.destination);
        }
        if ip.hops <= 1 {
            self.icmp_reply = icmp_reply::icmp_reply(packet, &ip, ip.total, IcmpError::HopsExceeded);
            return dropped(DropReason::HopsExceeded);
        }
        if congested && !header::mark_congestion(packet) {
            return dropped(DropReason::Congested);
        }
        header::count_hop(packet);
        self.merge.push(arena, range, &ip);
        PacketOutcome::Taken
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
