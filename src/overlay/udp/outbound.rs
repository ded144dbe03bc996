//! What becomes of a packet that the device hands over: which peer it goes to, in which shape, or why not at all.
//!
//! Everything is decided here, in memory that was set aside before; reading and sending are left to the loop around it.

use std::net::IpAddr;

use crate::counters::DropReason;
use crate::header::{self, Header};
use crate::icmp_reply::{self, IcmpError, IcmpReply};
use crate::offload::{self, OffloadWork};
use crate::outgoing::{Outgoing, OutgoingMessage, Slices};
use crate::peers::PeerTable;
use crate::segment::{self, MOST_HEADER, Segments};

/// Room that one read needs: the offload header and the longest packet.
const ONE_READ: usize = offload::LENGTH + 65_536;
/// Room for the headers of cut packets, before the packets themselves.
const HEADERS: usize = 48 * 1024;
const ARENA: usize = HEADERS + 4 * ONE_READ;

/// What became of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketOutcome {
    Taken,
    /// It is being cut and there is no room for the rest: send what waits, then `resume`.
    Unfinished,
    /// It goes no further. `icmp_reply` holds the error for its sender, if any.
    Dropped(DropReason),
}

pub struct Outbound {
    arena: Box<[u8]>,
    headers: usize,
    packets: usize,
    outgoing: Outgoing,
    cutting: Option<Cutting>,
    /// The last look-up, because packets come in runs.
    known: Option<(IpAddr, u32)>,
    /// About the packet that was dropped last.
    pub icmp_reply: Option<IcmpReply>,
}

struct Cutting {
    segments: Segments,
    start: usize,
    end: usize,
    peer: u32,
    alone: bool,
}

impl Outbound {
    pub fn new() -> Outbound {
        Outbound {
            arena: vec![0; ARENA].into(),
            headers: 0,
            packets: HEADERS,
            outgoing: Outgoing::new(),
            cutting: None,
            known: None,
            icmp_reply: None,
        }
    }

    /// Begins a batch over one state of the peers.
    pub fn begin(&mut self, table: &PeerTable) {
        self.known = None;
        self.outgoing.begin(table.numbers());
    }

    /// Where the next packet is to be read to; None when the batch has to be sent first.
    pub fn room(&mut self) -> Option<&mut [u8]> {
        if self.outgoing.is_full() || self.cutting.is_some() {
            return None;
        }
        self.arena.get_mut(self.packets..self.packets + ONE_READ)
    }

    /// Takes the `length` bytes that were read into `room`.
    pub fn accept(&mut self, table: &PeerTable, length: usize, second: u32) -> PacketOutcome {
        let (before, start) = (self.packets, self.packets + offload::LENGTH);
        let end = before + length.min(ONE_READ);
        let outcome = self.decide(table, before, start, end, second);
        if !matches!(outcome, PacketOutcome::Dropped(_)) {
            self.packets = end;
        }
        outcome
    }

    fn decide(
        &mut self,
        table: &PeerTable,
        before: usize,
        start: usize,
        end: usize,
        second: u32,
    ) -> PacketOutcome {
        let dropped = PacketOutcome::Dropped;
        self.icmp_reply = None;
        if end < start {
            return dropped(DropReason::Truncated);
        }
        let Some(work) =
            self.arena.get(before..).and_then(|bytes| bytes.first_chunk()).map(OffloadWork::read)
        else {
            return dropped(DropReason::Truncated);
        };
        let packet = &mut self.arena[start..end];
        let ip = match Header::read(packet) {
            Ok(ip) if ip.total == packet.len() => ip,
            Ok(_) => return dropped(DropReason::Oversized),
            Err(reason) => return dropped(reason),
        };
        let cut = match work {
            OffloadWork::Unknown => return dropped(DropReason::BadOffload),
            OffloadWork::Segments { transport, start, size } => {
                match Segments::new(packet, &ip, transport, start, size) {
                    Ok(segments) => Some(segments),
                    Err(reason) => return dropped(reason),
                }
            }
            OffloadWork::Nothing | OffloadWork::Checksum { .. } => None,
        };
        // The size that a router behind this one will see.
        let size = cut.as_ref().map_or(ip.total, Segments::length);
        let mut icmp_reply = |packet: &[u8], reason, trouble| {
            self.icmp_reply = icmp_reply::icmp_reply(packet, &ip, size, trouble);
            PacketOutcome::Dropped(reason)
        };
        let peer = match self.known {
            Some((address, peer)) if address == ip.destination => Some(peer),
            _ => table.find(ip.destination),
        };
        let Some((peer, entry)) = peer.and_then(|peer| Some((peer, table.entry(peer)?))) else {
            return icmp_reply(packet, DropReason::NoRoute, IcmpError::NoRoute);
        };
        self.known = Some((ip.destination, peer));
        if ip.hops <= 1 {
            return icmp_reply(packet, DropReason::HopsExceeded, IcmpError::HopsExceeded);
        }
        let most = entry.state.path_mtu(second).map(|mtu| if ip.is_v4() { mtu } else { mtu.max(1280) });
        let alone = match most {
            Some(most) if size > most as usize && ip.dont_fragment => {
                return icmp_reply(packet, DropReason::TooBig, IcmpError::TooBig(most));
            }
            // What may be split is split outside, by the kernel: an inner packet stays whole.
            Some(most) => size > most as usize || (!ip.is_v4() && most == 1280),
            None => entry.state.is_single(second),
        };
        header::count_hop(packet);
        if let OffloadWork::Checksum { start, offset } = work
            && let Err(reason) = segment::complete_checksum(packet, start, offset)
        {
            return dropped(reason);
        }
        match cut {
            Some(segments) => {
                self.cutting = Some(Cutting { segments, start, end, peer, alone });
                self.resume()
            }
            None => {
                self.outgoing.push(peer, Slices::whole(start..end), alone);
                PacketOutcome::Taken
            }
        }
    }

    /// Goes on with a packet that is being cut.
    pub fn resume(&mut self) -> PacketOutcome {
        let Some(mut cutting) = self.cutting.take() else { return PacketOutcome::Taken };
        let headers = cutting.segments.headers();
        let (heads, packets) = self.arena.split_at_mut(HEADERS);
        let packet = &packets[cutting.start - HEADERS..cutting.end - HEADERS];
        while !cutting.segments.is_done() {
            if self.outgoing.is_full() || self.headers + MOST_HEADER > HEADERS {
                self.cutting = Some(cutting);
                return PacketOutcome::Unfinished;
            }
            let Some(payload) = cutting.segments.next(packet, &mut heads[self.headers..]) else { break };
            let payload = cutting.start + payload.start..cutting.start + payload.end;
            let slices = Slices::split(self.headers..self.headers + headers, payload);
            self.outgoing.push(cutting.peer, slices, cutting.alone);
            self.headers += headers;
        }
        PacketOutcome::Taken
    }

    /// Everything that waits, as messages over the arena.
    pub fn pack(&mut self) -> (&[u8], &[OutgoingMessage], &[Slices]) {
        let (messages, slices) = self.outgoing.pack();
        (&self.arena, messages, slices)
    }

    pub fn is_empty(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Forgets what was sent. A packet that is being cut stays where it is.
    pub fn clear(&mut self) {
        self.outgoing.clear();
        self.headers = 0;
        if self.cutting.is_none() {
            self.packets = HEADERS;
        }
    }
}
