//! What the path needs to know of an IP packet, read with every bound checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum;
use crate::counters::DropReason;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const ICMPV6: u8 = 58;

/// An IP header that fits its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Bytes of the IP header, with IPv4's options, without IPv6's extension headers.
    pub length: usize,
    /// Bytes of the whole packet according to the header.
    pub total: usize,
    /// What follows the header: a transport, or IPv6's first extension header.
    pub protocol: u8,
    pub hops: u8,
    /// IPv4's "don't fragment"; always so in IPv6.
    pub dont_fragment: bool,
    /// Whether this is a fragment of an IPv4 packet.
    pub fragment: bool,
    /// Whether this is such a fragment, and not the first.
    pub later_fragment: bool,
}

impl Header {
    /// Reads the header at the start of `packet`.
    pub fn read(packet: &[u8]) -> Result<Header, DropReason> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => Self::read_v4(packet),
            Some(6) => Self::read_v6(packet),
            Some(_) => Err(DropReason::NotIp),
            None => Err(DropReason::Truncated),
        }
    }

    fn read_v4(packet: &[u8]) -> Result<Header, DropReason> {
        let fixed: &[u8; 20] = packet.first_chunk().ok_or(DropReason::Truncated)?;
        let length = usize::from(fixed[0] & 0x0f) * 4;
        let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if length < 20 || total < length {
            return Err(DropReason::NotIp);
        }
        if packet.len() < total {
            return Err(DropReason::Truncated);
        }
        let flags = u16::from_be_bytes([fixed[6], fixed[7]]);
        Ok(Header {
            source: IpAddr::V4(Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15])),
            destination: IpAddr::V4(Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19])),
            length,
            total,
            protocol: fixed[9],
            hops: fixed[8],
            dont_fragment: flags & 0x4000 != 0,
            fragment: flags & 0x3fff != 0,
            later_fragment: flags & 0x1fff != 0,
        })
    }

    fn read_v6(packet: &[u8]) -> Result<Header, DropReason> {
        let fixed: &[u8; 40] = packet.first_chunk().ok_or(DropReason::Truncated)?;
        let total = 40 + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
        if packet.len() < total {
            return Err(DropReason::Truncated);
        }
        let address = |at: usize| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&fixed[at..at + 16]);
            IpAddr::V6(Ipv6Addr::from(bytes))
        };
        Ok(Header {
            source: address(8),
            destination: address(24),
            length: 40,
            total,
            protocol: fixed[6],
            hops: fixed[7],
            dont_fragment: true,
            fragment: false,
            later_fragment: false,
        })
    }

    pub fn is_v4(&self) -> bool {
        self.source.is_ipv4()
    }
}

/// Takes one hop off a packet whose header was read and has more than one left.
pub fn count_hop(packet: &mut [u8]) {
    match packet {
        [first, _, _, _, _, _, _, _, ttl, protocol, high, low, ..] if *first >> 4 == 4 => {
            let old = [*ttl, *protocol];
            *ttl = ttl.saturating_sub(1);
            [*high, *low] = checksum::adjust([*high, *low], old, [*ttl, *protocol]);
        }
        [_, _, _, _, _, _, _, hops, ..] => *hops = hops.saturating_sub(1),
        _ => {}
    }
}

/// Marks a packet because a router outside was congested (RFC 6040). False when the packet is not ECN-capable: then it has
/// to be dropped instead.
pub fn mark_congestion(packet: &mut [u8]) -> bool {
    match packet {
        [first, service, _, _, _, _, _, _, _, _, high, low, ..] if *first >> 4 == 4 => {
            let old = [*first, *service];
            let able = *service & 3 != 0;
            *service |= if able { 3 } else { 0 };
            [*high, *low] = checksum::adjust([*high, *low], old, [*first, *service]);
            able
        }
        [_, second, ..] => {
            let able = *second & 0x30 != 0;
            *second |= if able { 0x30 } else { 0 };
            able
        }
        _ => false,
    }
}

/// Writes an IP packet's length into its header, and makes the header's checksum right again.
pub fn set_total(header: &mut [u8], total: usize) {
    let total = total.min(usize::from(u16::MAX)) as u16;
    if header.first().is_some_and(|byte| byte >> 4 == 4) {
        let length = usize::from(header[0] & 0x0f) * 4;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[10..12].fill(0);
        let sum = checksum::finish(checksum::add(0, &header[..length]));
        header[10..12].copy_from_slice(&sum);
    } else {
        header[4..6].copy_from_slice(&total.saturating_sub(40).to_be_bytes());
    }
}

/// The sum over what a transport's checksum covers of the IP header: addresses, protocol and length.
pub fn pseudo_sum(ip: &[u8], protocol: u8, length: usize) -> u64 {
    let addresses = if ip[0] >> 4 == 4 { &ip[12..20] } else { &ip[8..40] };
    let sum = checksum::add(0, addresses);
    checksum::add_number(checksum::add_number(sum, protocol.into()), length as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_header_that_was_read_fits_its_packet(mut bytes in prop::collection::vec(any::<u8>(), 0..100), v6: bool) {
            if let Some(first) = bytes.first_mut() {
                *first = *first & 0x0f | if v6 { 0x60 } else { 0x40 };
            }
            if let Ok(header) = Header::read(&bytes) {
                prop_assert!(header.length <= header.total && header.total <= bytes.len());
            }
            count_hop(&mut bytes);
        }

        #[test]
        fn a_congestion_mark_is_set_where_there_is_room_for_it(mut bytes in any::<[u8; 20]>()) {
            bytes[0] = 0x45;
            set_total(&mut bytes, 20);
            let before = bytes[1] & 3;
            prop_assert_eq!(mark_congestion(&mut bytes), before != 0);
            prop_assert_eq!(bytes[1] & 3, if before == 0 { 0 } else { 3 });
            prop_assert!(checksum::is_right(checksum::add(0, &bytes)));
        }

        #[test]
        fn counting_a_hop_keeps_the_checksum(mut bytes in any::<[u8; 20]>()) {
            bytes[0] = 0x45;
            bytes[8] |= 2;
            set_total(&mut bytes, 20);
            let hops = bytes[8];
            count_hop(&mut bytes);
            prop_assert_eq!(bytes[8], hops - 1);
            prop_assert!(checksum::is_right(checksum::add(0, &bytes)));
        }
    }
}
