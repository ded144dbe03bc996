//! Cuts a packet that stands for many into those many, as a network card would.
//!
//! Only headers are written anew; payload stays where it is, and is read once for its checksum.

use std::ops::Range;

use crate::checksum;
use crate::counters::DropReason;
use crate::header::{self, Header, TCP, UDP};
use crate::offload::Transport;

/// The most bytes of IP and transport headers that one segment may have.
pub const MOST_HEADER: usize = 160;

const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// How far the cutting of one packet has come.
#[derive(Debug, Clone)]
pub struct Segments {
    transport: Transport,
    /// Where the transport's header starts, and where the payload does.
    start: usize,
    headers: usize,
    total: usize,
    size: usize,
    next: usize,
    count: u16,
}

impl Segments {
    pub fn new(
        packet: &[u8],
        ip: &Header,
        transport: Transport,
        start: usize,
        size: usize,
    ) -> Result<Segments, DropReason> {
        let protocol = match transport {
            Transport::Tcp => TCP,
            Transport::Udp => UDP,
        };
        // Only IPv6 may have more headers in between, which are copied as they are.
        let plain = start == ip.length && ip.protocol == protocol;
        let extended = !ip.is_v4() && start > ip.length;
        if !(plain || extended) || ip.fragment || size == 0 {
            return Err(DropReason::BadOffload);
        }
        let length = match transport {
            Transport::Tcp => packet.get(start + 12).map_or(0, |byte| usize::from(byte >> 4) * 4),
            Transport::Udp => 8,
        };
        let headers = start + length;
        let short = match transport {
            Transport::Tcp => length < 20,
            Transport::Udp => false,
        };
        if short || headers >= ip.total || headers > MOST_HEADER || headers + size > usize::from(u16::MAX) {
            return Err(DropReason::BadOffload);
        }
        Ok(Segments { transport, start, headers, total: ip.total, size, next: headers, count: 0 })
    }

    /// The bytes of a full segment.
    pub fn length(&self) -> usize {
        self.headers + self.size.min(self.total - self.headers)
    }

    pub fn headers(&self) -> usize {
        self.headers
    }

    pub fn is_done(&self) -> bool {
        self.next >= self.total
    }

    /// Writes the next segment's headers to the start of `out`, which has room for them, and returns where in `packet`
    /// its payload is.
    pub fn next(&mut self, packet: &[u8], out: &mut [u8]) -> Option<Range<usize>> {
        if self.is_done() {
            return None;
        }
        let payload = self.next..(self.next + self.size).min(self.total);
        let last = payload.end == self.total;
        let out = out.get_mut(..self.headers)?;
        out.copy_from_slice(packet.get(..self.headers)?);
        let (ip, transport) = out.split_at_mut(self.start);
        if ip[0] >> 4 == 4 {
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(self.count);
            ip[4..6].copy_from_slice(&id.to_be_bytes());
        }
        header::set_total(ip, self.headers + payload.len());
        let length = transport.len() + payload.len();
        let data = packet.get(payload.clone())?;
        match self.transport {
            Transport::Tcp => {
                let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
                let sequence = sequence.wrapping_add((self.next - self.headers) as u32);
                transport[4..8].copy_from_slice(&sequence.to_be_bytes());
                if !last {
                    transport[13] &= !FIN_PSH;
                }
                if self.count > 0 {
                    transport[13] &= !CWR;
                }
                seal(ip, transport, data, TCP, 16);
            }
            Transport::Udp => {
                transport[4..6].copy_from_slice(&(length as u16).to_be_bytes());
                seal(ip, transport, data, UDP, 6);
            }
        }
        self.next = payload.end;
        self.count = self.count.wrapping_add(1);
        Some(payload)
    }
}

/// Puts a transport's checksum into its header.
fn seal(ip: &[u8], transport: &mut [u8], data: &[u8], protocol: u8, at: usize) {
    transport[at..at + 2].fill(0);
    let sum = header::pseudo_sum(ip, protocol, transport.len() + data.len());
    let sum = checksum::add(checksum::add(sum, transport), data);
    let mut value = checksum::finish(sum);
    // In UDP a zero means "no checksum".
    if protocol == UDP && value == [0, 0] {
        value = [0xff, 0xff];
    }
    transport[at..at + 2].copy_from_slice(&value);
}

/// Finishes a checksum of which the kernel has left the sum of the addresses in its place.
pub fn complete_checksum(packet: &mut [u8], start: usize, offset: usize) -> Result<(), DropReason> {
    if start + offset + 2 > packet.len() {
        return Err(DropReason::BadOffload);
    }
    let mut value = checksum::finish(checksum::add(0, &packet[start..]));
    if value == [0, 0] {
        value = [0xff, 0xff]; // the same number to TCP; to UDP the zero would mean "none"
    }
    packet[start + offset..start + offset + 2].copy_from_slice(&value);
    Ok(())
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
