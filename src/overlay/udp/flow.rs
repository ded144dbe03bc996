//! Which stream a packet belongs to, and whether it goes on where another ended.

use crate::checksum;
use crate::header::{self, Header, TCP, UDP};
use crate::offload::Transport;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;
const CWR: u8 = 0x80;

/// What merging needs to know of a TCP or UDP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    pub transport: Transport,
    pub v4: bool,
    /// Where the transport's header starts, and where the payload does.
    pub start: usize,
    pub headers: usize,
    /// How many bytes of payload there are.
    pub payload: usize,
    pub hash: u32,
    pub push: bool,
    /// Set on packets that carry more than data, or that cannot be rebuilt from a merged one.
    special: bool,
    sequence: u32,
    id: u16,
    dont_fragment: bool,
}

impl Flow {
    /// None for everything that is neither whole TCP nor whole UDP with plain IP headers.
    pub fn read(packet: &[u8], ip: &Header) -> Option<Flow> {
        let v4 = ip.is_v4();
        if ip.fragment || (v4 && ip.length != 20) {
            return None;
        }
        let start = ip.length;
        let segment = packet.get(start..ip.total)?;
        let ports: &[u8; 4] = segment.first_chunk()?;
        let number = |at: usize| {
            segment.get(at..at + 4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]])).unwrap_or_default()
        };
        let (transport, length, special, push, sequence) = match ip.protocol {
            TCP => {
                let fixed: &[u8; 20] = segment.first_chunk()?;
                let flags = fixed[13];
                let special = flags & (FIN | SYN | RST | URG | CWR) != 0 || flags & ACK == 0;
                (Transport::Tcp, usize::from(fixed[12] >> 4) * 4, special, flags & PSH != 0, number(4))
            }
            UDP => {
                let fixed: &[u8; 8] = segment.first_chunk()?;
                let length_field = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
                let unsealed = fixed[6..8] == [0, 0];
                (Transport::Udp, 8, unsealed || length_field != segment.len(), false, 0)
            }
            _ => return None,
        };
        let least = if transport == Transport::Tcp { 20 } else { 8 };
        if length < least || length > segment.len() {
            return None;
        }
        let addresses = if v4 { packet.get(12..20)? } else { packet.get(8..40)? };
        let hash = addresses.chunks_exact(4).chain([ports.as_slice()]).fold(0u32, |hash, word| {
            (hash.rotate_left(5) ^ u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
                .wrapping_mul(0x9e37_79b1)
        });
        Some(Flow {
            transport,
            v4,
            start,
            headers: start + length,
            payload: segment.len() - length,
            hash: hash >> 16,
            push,
            special,
            sequence,
            id: if v4 { u16::from_be_bytes([packet[4], packet[5]]) } else { 0 },
            dont_fragment: ip.dont_fragment,
        })
    }

    /// Whether another packet may be put behind this one.
    pub fn may_go_on(&self) -> bool {
        !self.special && !self.push && self.payload > 0
    }

    /// Whether this packet comes right after `count` packets with `payload` bytes that began with `first`: the same
    /// stream, the same headers, the next bytes.
    pub fn continues(&self, packet: &[u8], first: &Flow, head: &[u8], count: u16, payload: u32) -> bool {
        if self.special
            || self.transport != first.transport
            || self.v4 != first.v4
            || self.headers != first.headers
        {
            return false;
        }
        let same = |range: std::ops::Range<usize>| packet.get(range.clone()) == head.get(range);
        let ip = if self.v4 {
            // Version, header length and service; flags, hops and protocol; addresses. Numbers that only matter to
            // fragments may be anything where there are none.
            same(0..2)
                && same(6..10)
                && same(12..20)
                && (self.dont_fragment || self.id == first.id.wrapping_add(count))
        } else {
            same(0..4) && same(6..40)
        };
        let at = self.start;
        ip && same(at..at + 4)
            && match self.transport {
                Transport::Udp => true,
                // Acknowledgement, header length, window and options; the flags but for PSH, which ends a group.
                Transport::Tcp => {
                    self.sequence == first.sequence.wrapping_add(payload)
                        && same(at + 8..at + 13)
                        && (packet[at + 13] ^ head[at + 13]) & !PSH == 0
                        && same(at + 14..at + 16)
                        && same(at + 18..self.headers)
                }
            }
    }

    /// Whether the checksums of a packet of this flow are right.
    pub fn is_right(&self, packet: &[u8]) -> bool {
        let protocol = match self.transport {
            Transport::Tcp => TCP,
            Transport::Udp => UDP,
        };
        let (Some(ip), Some(segment)) = (packet.get(..self.start), packet.get(self.start..)) else {
            return false;
        };
        let header = !self.v4 || checksum::is_right(checksum::add(0, ip));
        let sum = header::pseudo_sum(ip, protocol, segment.len());
        header && checksum::is_right(checksum::add(sum, segment))
    }
}
