//! Puts received packets that continue each other back together, so that the kernel takes them as one.
//!
//! What comes out is, for every receiver, what came in: a merged packet stands for exactly the packets it was made of, and
//! cutting it again gives them back. A packet whose checksum is wrong is handed on alone and as it is; merging it would
//! have the kernel compute a right one over spoilt data.

use std::ops::Range;

use crate::checksum;
use crate::flow::Flow;
use crate::header::{self, Header};
use crate::offload::{self, Transport};

/// The most packets that are held before they are written.
pub const MOST_PACKETS: usize = 1024;
/// The most packets in one merged packet: what the kernel takes of UDP, and short enough for one writev.
pub const MOST_MERGED: usize = 64;

const NONE: u16 = u16::MAX;
const SLOTS: usize = 64;
const PSH: u8 = 0x08;

#[derive(Debug)]
pub struct Merge {
    members: Vec<Member>,
    groups: Vec<Group>,
    /// The group that a flow may go on in, by the flow's hash.
    open: [u16; SLOTS],
    /// Whether this kernel's device takes merged UDP.
    udp: bool,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    start: u32,
    length: u32,
    next: u16,
}

/// Packets that will be written as one. A group of one is written as it came.
#[derive(Debug, Clone, Copy)]
struct Group {
    first: u16,
    last: u16,
    count: u16,
    flow: Option<Flow>,
    /// Payload of all members together.
    payload: u32,
    verified: bool,
    push: bool,
}

impl Merge {
    pub fn new(udp: bool) -> Merge {
        Merge {
            members: Vec::with_capacity(MOST_PACKETS),
            groups: Vec::with_capacity(MOST_PACKETS),
            open: [NONE; SLOTS],
            udp,
        }
    }

    pub fn is_full(&self) -> bool {
        self.members.len() >= MOST_PACKETS
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Takes the packet at `range` of `arena`, whose header was read and fits; the caller has asked `is_full` before.
    pub fn push(&mut self, arena: &[u8], range: Range<usize>, ip: &Header) {
        let Some(packet) = arena.get(range.clone()) else { return };
        let flow = Flow::read(packet, ip).filter(|flow| self.udp || flow.transport == Transport::Tcp);
        let number = self.members.len() as u16;
        self.members.push(Member { start: range.start as u32, length: range.len() as u32, next: NONE });
        let slot = flow.map(|flow| flow.hash as usize % SLOTS);
        let joined = match (flow, slot) {
            (Some(flow), Some(slot)) if flow.payload > 0 => self.join(arena, packet, flow, slot, number),
            _ => false,
        };
        if joined {
            return;
        }
        let group = self.groups.len() as u16;
        let push = flow.is_some_and(|flow| flow.push);
        let payload = flow.map_or(0, |flow| flow.payload as u32);
        self.groups.push(Group {
            first: number,
            last: number,
            count: 1,
            flow,
            payload,
            verified: false,
            push,
        });
        if let (Some(flow), Some(slot)) = (flow, slot) {
            // Whatever was open there ends here, so that nothing of this flow can slip in before this packet.
            self.open[slot] = if flow.may_go_on() { group } else { NONE };
        }
    }

    fn join(&mut self, arena: &[u8], packet: &[u8], flow: Flow, slot: usize, number: u16) -> bool {
        let Some(group) = self.groups.get(usize::from(self.open[slot])).copied() else { return false };
        let (Some(begun), Some(first)) = (group.flow, self.members.get(usize::from(group.first)).copied())
        else {
            return false;
        };
        let Some(head) = arena.get(first.start as usize..(first.start + first.length) as usize) else {
            return false;
        };
        let fits = flow.payload <= begun.payload
            && usize::from(group.count) < MOST_MERGED
            && begun.headers + group.payload as usize + flow.payload <= usize::from(u16::MAX)
            && flow.continues(packet, &begun, head, group.count, group.payload);
        if !fits {
            return false;
        }
        if !group.verified && !begun.is_right(head) {
            self.open[slot] = NONE;
            return false;
        }
        if let Some(group) = self.groups.get_mut(usize::from(self.open[slot])) {
            group.verified = true;
            if !flow.is_right(packet) {
                self.open[slot] = NONE;
                return false;
            }
            if let Some(last) = self.members.get_mut(usize::from(group.last)) {
                last.next = number;
            }
            group.last = number;
            group.count += 1;
            group.payload += flow.payload as u32;
            group.push |= flow.push;
        }
        // A shorter one, or one that must be handed up at once, is the last.
        if flow.payload < begun.payload || !flow.may_go_on() {
            self.open[slot] = NONE;
        }
        true
    }

    /// How many packets are to be written.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Makes the packet of one group ready: fixes its headers in the arena, and lists the slices that make it up.
    /// Returns the offload header that goes before it.
    pub fn finish(
        &self,
        number: usize,
        arena: &mut [u8],
        slices: &mut Vec<Range<usize>>,
    ) -> [u8; offload::LENGTH] {
        slices.clear();
        let Some(group) = self.groups.get(number) else { return offload::PLAIN };
        let mut at = group.first;
        let mut skip = 0;
        while let Some(member) = self.members.get(usize::from(at)) {
            let (start, end) = (member.start as usize, (member.start + member.length) as usize);
            slices.push(start + skip..end);
            skip = group.flow.map_or(0, |flow| flow.headers);
            at = member.next;
        }
        let (Some(flow), Some(first)) = (group.flow, slices.first()) else { return offload::PLAIN };
        if group.count < 2 {
            return offload::PLAIN;
        }
        let Some(head) = arena.get_mut(first.start..first.start + flow.headers) else {
            return offload::PLAIN;
        };
        let length = flow.headers - flow.start + group.payload as usize;
        let (ip, transport) = head.split_at_mut(flow.start);
        header::set_total(ip, flow.start + length);
        let (protocol, at) = match flow.transport {
            Transport::Tcp => (header::TCP, 16),
            Transport::Udp => (header::UDP, 6),
        };
        if flow.transport == Transport::Udp {
            transport[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        } else if group.push {
            transport[13] |= PSH;
        }
        let begun = checksum::fold(header::pseudo_sum(ip, protocol, length));
        transport[at..at + 2].copy_from_slice(&begun);
        offload::merged(flow.transport, flow.v4, flow.start, flow.headers, flow.payload)
    }

    pub fn clear(&mut self) {
        self.members.clear();
        self.groups.clear();
        self.open = [NONE; SLOTS];
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
