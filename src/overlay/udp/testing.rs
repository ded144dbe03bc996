//! Packets for tests, built from their definition and not by the code under test.

use crate::checksum;
use crate::header::{self, Header, TCP, UDP};

#[derive(Debug, Clone)]
pub struct Shape {
    pub v4: bool,
    pub tcp: bool,
    /// Words of TCP options.
    pub options: usize,
    pub source: u8,
    pub port: u16,
    pub sequence: u32,
    pub acknowledged: u32,
    pub flags: u8,
    pub id: u16,
    pub dont_fragment: bool,
    pub hops: u8,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            v4: true,
            tcp: true,
            options: 0,
            source: 1,
            port: 4000,
            sequence: 0xffff_f000,
            acknowledged: 77,
            flags: 0x18,
            id: 0xfff0,
            dont_fragment: true,
            hops: 64,
        }
    }
}

/// A packet from 10.1.1.N (fd00:1::N) to 10.1.2.9 (fd00:2::9) with right checksums.
pub fn packet(shape: &Shape, payload: &[u8]) -> Vec<u8> {
    let mut transport = Vec::new();
    transport.extend(shape.port.to_be_bytes());
    transport.extend(80u16.to_be_bytes());
    if shape.tcp {
        transport.extend(shape.sequence.to_be_bytes());
        transport.extend(shape.acknowledged.to_be_bytes());
        transport.extend([(5 + shape.options as u8) << 4, shape.flags, 0x20, 0, 0, 0, 0, 0]);
        transport.extend(std::iter::repeat_n(1u8, 4 * shape.options));
    } else {
        transport.extend((8 + payload.len() as u16).to_be_bytes());
        transport.extend([0, 0]);
    }
    let length = transport.len() + payload.len();
    let mut bytes = Vec::new();
    let protocol = if shape.tcp { TCP } else { UDP };
    if shape.v4 {
        bytes.extend([0x45, 0]);
        bytes.extend((20 + length as u16).to_be_bytes());
        bytes.extend(shape.id.to_be_bytes());
        bytes.extend([if shape.dont_fragment { 0x40 } else { 0 }, 0, shape.hops, protocol, 0, 0]);
        bytes.extend([10, 1, 1, shape.source, 10, 1, 2, 9]);
        let sum = checksum::finish(checksum::add(0, &bytes));
        bytes[10..12].copy_from_slice(&sum);
    } else {
        bytes.extend([0x60, 0, 0, 0]);
        bytes.extend((length as u16).to_be_bytes());
        bytes.extend([protocol, shape.hops]);
        bytes.extend([0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, shape.source]);
        bytes.extend([0xfd, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    }
    let at = if shape.tcp { 16 } else { 6 };
    let sum = header::pseudo_sum(&bytes, protocol, length);
    let mut value = checksum::finish(checksum::add(checksum::add(sum, &transport), payload));
    if !shape.tcp && value == [0, 0] {
        value = [0xff; 2];
    }
    transport[at..at + 2].copy_from_slice(&value);
    bytes.extend(transport);
    bytes.extend(payload);
    bytes
}

/// Whether a packet's IP header and transport have the checksums they should have.
pub fn transport_is_right(packet: &[u8]) -> bool {
    let ip = Header::read(packet).unwrap();
    let sum = header::pseudo_sum(packet, ip.protocol, ip.total - ip.length);
    let header = !ip.is_v4() || checksum::is_right(checksum::add(0, &packet[..ip.length]));
    header && checksum::is_right(checksum::add(sum, &packet[ip.length..ip.total]))
}
