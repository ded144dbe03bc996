//! Packets that wait to be sent, and how they are put together: one message per peer and run of equal sizes.
//!
//! The kernel cuts one message into datagrams of one size (UDP_SEGMENT), of which only the last may be shorter. Packets to
//! different peers may come in any mixture; the order of those to one peer is kept.

use std::ops::Range;

/// The most packets that wait at once.
pub const MOST_PACKETS: usize = 512;
/// The most datagrams that older kernels make of one message.
const MOST_SEGMENTS: usize = 64;
/// What fits an IPv4 datagram, with IP and UDP headers.
const MOST_BYTES: usize = 65_507;

const NONE: u16 = u16::MAX;

/// Where a packet's bytes are: its head, then its tail if that is somewhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slices {
    pub head: (u32, u32),
    pub tail: (u32, u32),
}

impl Slices {
    pub fn whole(range: Range<usize>) -> Slices {
        Slices { head: (range.start as u32, range.len() as u32), tail: (0, 0) }
    }

    pub fn split(head: Range<usize>, tail: Range<usize>) -> Slices {
        Slices { head: (head.start as u32, head.len() as u32), tail: (tail.start as u32, tail.len() as u32) }
    }

    pub fn len(&self) -> usize {
        (self.head.1 + self.tail.1) as usize
    }
}

/// One message to one peer: packets of `size` bytes each, the last perhaps shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingMessage {
    pub peer: u32,
    pub size: usize,
    pub bytes: usize,
    /// Which of the ordered slices belong to it, one for each packet.
    pub slices: Range<usize>,
}

#[derive(Debug, Default)]
pub struct Outgoing {
    packets: Vec<Waiting>,
    lanes: Vec<Lane>,
    /// The lane of each peer by its number; NONE where nothing waits.
    lane_of: Vec<u16>,
    ordered: Vec<Slices>,
    messages: Vec<OutgoingMessage>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    slices: Slices,
    next: u16,
    /// Larger than the path's datagrams: the kernel has to send it in fragments, so it goes by itself.
    alone: bool,
}

/// The packets that wait for one peer, as a list through `Waiting::next`.
#[derive(Debug, Clone, Copy)]
struct Lane {
    peer: u32,
    first: u16,
    last: u16,
}

impl Outgoing {
    /// Makes room for everything up front, so that no packet ever allocates.
    pub fn new() -> Outgoing {
        Outgoing {
            packets: Vec::with_capacity(MOST_PACKETS),
            lanes: Vec::with_capacity(MOST_PACKETS),
            lane_of: Vec::new(),
            ordered: Vec::with_capacity(MOST_PACKETS),
            messages: Vec::with_capacity(MOST_PACKETS),
        }
    }

    /// Prepares for a table in which peers have numbers below `numbers`.
    pub fn begin(&mut self, numbers: usize) {
        if self.lane_of.len() < numbers {
            self.lane_of.resize(numbers, NONE);
        }
    }

    pub fn is_full(&self) -> bool {
        self.packets.len() >= MOST_PACKETS
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Queues a packet; the caller has asked `is_full` before.
    pub fn push(&mut self, peer: u32, slices: Slices, alone: bool) {
        let number = self.packets.len() as u16;
        self.packets.push(Waiting { slices, next: NONE, alone });
        let Some(lane) = self.lane_of.get_mut(peer as usize) else { return };
        if *lane == NONE {
            *lane = self.lanes.len() as u16;
            self.lanes.push(Lane { peer, first: number, last: number });
        } else if let Some(lane) = self.lanes.get_mut(usize::from(*lane)) {
            if let Some(before) = self.packets.get_mut(usize::from(lane.last)) {
                before.next = number;
            }
            lane.last = number;
        }
    }

    /// Puts everything that waits into messages.
    pub fn pack(&mut self) -> (&[OutgoingMessage], &[Slices]) {
        self.ordered.clear();
        self.messages.clear();
        for lane in &self.lanes {
            let mut open: Option<OutgoingMessage> = None;
            let mut at = lane.first;
            while let Some(packet) = self.packets.get(usize::from(at)) {
                let length = packet.slices.len();
                let fits = open.as_ref().is_some_and(|m| {
                    !packet.alone
                        && length <= m.size
                        && m.bytes == m.size * m.slices.len() // a shorter one was the last
                        && m.slices.len() < MOST_SEGMENTS
                        && m.bytes + length <= MOST_BYTES
                });
                if !fits {
                    self.messages.extend(open.take());
                }
                let end = self.ordered.len() + 1;
                let message = open.get_or_insert(OutgoingMessage {
                    peer: lane.peer,
                    size: length,
                    bytes: 0,
                    slices: end - 1..end,
                });
                message.bytes += length;
                message.slices.end = end;
                self.ordered.push(packet.slices);
                if packet.alone {
                    self.messages.extend(open.take());
                }
                at = packet.next;
            }
            self.messages.extend(open);
        }
        (&self.messages, &self.ordered)
    }

    pub fn clear(&mut self) {
        for lane in self.lanes.drain(..) {
            if let Some(lane) = self.lane_of.get_mut(lane.peer as usize) {
                *lane = NONE;
            }
        }
        self.packets.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_packet_goes_out_once_in_order_and_in_messages_that_the_kernel_takes(
            packets in prop::collection::vec(
                (0u32..5, prop::sample::select(vec![60usize, 92, 1472, 1472, 1472, 9000]), prop::bool::weighted(0.05)),
                0..MOST_PACKETS,
            ),
        ) {
            let mut outgoing = Outgoing::new();
            outgoing.begin(5);
            for round in 0..2 {
                let mut at = 0;
                for (peer, length, alone) in &packets {
                    prop_assert!(!outgoing.is_full());
                    outgoing.push(*peer, Slices::split(at..at + 20, at + 20..at + length), *alone);
                    at += length;
                }
                let (messages, slices) = outgoing.pack();
                let mut sent: Vec<(u32, Slices)> = Vec::new();
                for message in messages {
                    let own = &slices[message.slices.clone()];
                    prop_assert!(own.len() <= MOST_SEGMENTS && message.bytes <= MOST_BYTES.max(own[0].len()));
                    prop_assert_eq!(own.iter().map(Slices::len).sum::<usize>(), message.bytes);
                    let (last, others) = own.split_last().unwrap();
                    prop_assert!(others.iter().all(|s| s.len() == message.size) && last.len() <= message.size);
                    sent.extend(own.iter().map(|s| (message.peer, *s)));
                }
                let mut at = 0;
                let mut pushed = Vec::new();
                for (peer, length, _) in &packets {
                    pushed.push((*peer, Slices::split(at..at + 20, at + 20..at + length)));
                    at += length;
                }
                for peer in 0..5 {
                    let of = |list: &[(u32, Slices)]| list.iter().filter(|(p, _)| *p == peer).copied().collect::<Vec<_>>();
                    prop_assert_eq!(of(&sent), of(&pushed), "round {}", round);
                }
                outgoing.clear();
            }
        }
    }

    #[test]
    fn a_stream_to_one_peer_is_few_messages_also_when_another_is_mixed_in() {
        let mut outgoing = Outgoing::new();
        outgoing.begin(2);
        for n in 0..128usize {
            outgoing.push(n as u32 % 2, Slices::whole(n * 92..n * 92 + 92), false);
        }
        assert_eq!(outgoing.pack().0.len(), 2);
    }
}
