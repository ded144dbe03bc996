//! What becomes of a packet that the device hands over: which peer it goes to, in which shape, or why not at all.
//!
//! Everything is decided here, in memory that was set aside before; reading and sending are left to the loop around it.

use std::net::IpAddr;

use crate::counters::Reason;
use crate::header::{self, Header};
use crate::icmp::{self, Trouble};
use crate::offload::{self, Work};
use crate::outgoing::{Message, Outgoing, Slices};
use crate::peers::Table;
use crate::segment::{self, MOST_HEADER, Segments};

/// Room that one read needs: the offload header and the longest packet.
const ONE_READ: usize = offload::LENGTH + 65_536;
/// Room for the headers of cut packets, before the packets themselves.
const HEADERS: usize = 48 * 1024;
const ARENA: usize = HEADERS + 4 * ONE_READ;

/// What became of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Taken,
    /// It is being cut and there is no room for the rest: send what waits, then `resume`.
    Unfinished,
    /// It goes no further. `told` holds what its sender is to hear of it, if anything.
    Dropped(Reason),
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
    pub told: Option<icmp::Message>,
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
            told: None,
        }
    }

    /// Begins a batch over one state of the peers.
    pub fn begin(&mut self, table: &Table) {
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
    pub fn accept(&mut self, table: &Table, length: usize, second: u32) -> Outcome {
        let (before, start) = (self.packets, self.packets + offload::LENGTH);
        let end = before + length.min(ONE_READ);
        let outcome = self.judge(table, before, start, end, second);
        if !matches!(outcome, Outcome::Dropped(_)) {
            self.packets = end;
        }
        outcome
    }

    fn judge(&mut self, table: &Table, before: usize, start: usize, end: usize, second: u32) -> Outcome {
        let dropped = Outcome::Dropped;
        self.told = None;
        if end < start {
            return dropped(Reason::Truncated);
        }
        let Some(work) = self.arena.get(before..).and_then(|bytes| bytes.first_chunk()).map(Work::read)
        else {
            return dropped(Reason::Truncated);
        };
        let packet = &mut self.arena[start..end];
        let ip = match Header::read(packet) {
            Ok(ip) if ip.total == packet.len() => ip,
            Ok(_) => return dropped(Reason::Oversized),
            Err(reason) => return dropped(reason),
        };
        let cut = match work {
            Work::Unknown => return dropped(Reason::BadOffload),
            Work::Segments { transport, start, size } => {
                match Segments::new(packet, &ip, transport, start, size) {
                    Ok(segments) => Some(segments),
                    Err(reason) => return dropped(reason),
                }
            }
            Work::Nothing | Work::Checksum { .. } => None,
        };
        // The size that a router behind this one will see.
        let size = cut.as_ref().map_or(ip.total, Segments::length);
        let mut told = |packet: &[u8], reason, trouble| {
            self.told = icmp::message(packet, &ip, size, trouble);
            Outcome::Dropped(reason)
        };
        let peer = match self.known {
            Some((address, peer)) if address == ip.destination => Some(peer),
            _ => table.find(ip.destination),
        };
        let Some((peer, entry)) = peer.and_then(|peer| Some((peer, table.entry(peer)?))) else {
            return told(packet, Reason::NoRoute, Trouble::NoRoute);
        };
        self.known = Some((ip.destination, peer));
        if ip.hops <= 1 {
            return told(packet, Reason::HopsExceeded, Trouble::HopsExceeded);
        }
        let most = entry.state.path_mtu(second).map(|mtu| if ip.is_v4() { mtu } else { mtu.max(1280) });
        let alone = match most {
            Some(most) if size > most as usize && ip.whole => {
                return told(packet, Reason::TooBig, Trouble::TooBig(most));
            }
            // What may be split is split outside, by the kernel: an inner packet stays whole.
            Some(most) => size > most as usize || (!ip.is_v4() && most == 1280),
            None => entry.state.is_single(second),
        };
        header::count_hop(packet);
        if let Work::Checksum { start, offset } = work
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
                Outcome::Taken
            }
        }
    }

    /// Goes on with a packet that is being cut.
    pub fn resume(&mut self) -> Outcome {
        let Some(mut cutting) = self.cutting.take() else { return Outcome::Taken };
        let headers = cutting.segments.headers();
        let (heads, packets) = self.arena.split_at_mut(HEADERS);
        let packet = &packets[cutting.start - HEADERS..cutting.end - HEADERS];
        while !cutting.segments.is_done() {
            if self.outgoing.is_full() || self.headers + MOST_HEADER > HEADERS {
                self.cutting = Some(cutting);
                return Outcome::Unfinished;
            }
            let Some(payload) = cutting.segments.next(packet, &mut heads[self.headers..]) else { break };
            let payload = cutting.start + payload.start..cutting.start + payload.end;
            let slices = Slices::split(self.headers..self.headers + headers, payload);
            self.outgoing.push(cutting.peer, slices, cutting.alone);
            self.headers += headers;
        }
        Outcome::Taken
    }

    /// Everything that waits, as messages over the arena.
    pub fn pack(&mut self) -> (&[u8], &[Message], &[Slices]) {
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
