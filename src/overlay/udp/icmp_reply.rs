//! ICMP errors to senders whose packets cannot be forwarded, and when none is sent.

use std::net::{IpAddr, Ipv4Addr};

use crate::checksum;
use crate::header::{Header, ICMP, ICMPV6};

/// Why the packet is not carried on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    HopsExceeded,
    NoRoute,
    /// With the largest packet that would fit.
    TooBig(u32),
}

/// An ICMP error message without its IP header, for the host's own raw socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IcmpReply {
    pub to: IpAddr,
    bytes: [u8; MOST],
    length: usize,
}

/// RFC 1812: with its IP header a message has at most 576 bytes. The same is plenty for IPv6.
const MOST: usize = 576 - 20;

impl IcmpReply {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The message about `packet`, whose header was read; `total` is its length as a router on the way would have seen it.
pub fn icmp_reply(packet: &[u8], ip: &Header, total: usize, error: IcmpError) -> Option<IcmpReply> {
    if keep_silent(packet, ip) {
        return None;
    }
    let (kind, code, word) = match (ip.is_v4(), error) {
        (true, IcmpError::HopsExceeded) => (11, 0, 0),
        (true, IcmpError::NoRoute) => (3, 0, 0),
        (true, IcmpError::TooBig(mtu)) => (3, 4, mtu.min(0xffff)),
        (false, IcmpError::HopsExceeded) => (3, 0, 0),
        (false, IcmpError::NoRoute) => (1, 0, 0),
        (false, IcmpError::TooBig(mtu)) => (2, 0, mtu),
    };
    let mut bytes = [0; MOST];
    bytes[0] = kind;
    bytes[1] = code;
    bytes[4..8].copy_from_slice(&word.to_be_bytes());
    let quoted = packet.len().min(total).min(MOST - 8);
    bytes[8..8 + quoted].copy_from_slice(&packet[..quoted]);
    if total != ip.total {
        crate::header::set_total(&mut bytes[8..], total);
    }
    let length = 8 + quoted;
    if ip.is_v4() {
        let sum = checksum::finish(checksum::add(0, &bytes[..length]));
        bytes[2..4].copy_from_slice(&sum);
    } // the kernel computes ICMPv6's checksum, because only it knows the source address
    Some(IcmpReply { to: ip.source, bytes, length })
}

/// Never about errors, later fragments, or packets that were not from one host to one host (RFC 1122, RFC 4443).
fn keep_silent(packet: &[u8], ip: &Header) -> bool {
    let nobody = match ip.source {
        IpAddr::V4(a) => a.is_unspecified() || a.is_loopback() || a.is_multicast() || a.octets()[0] >= 240,
        IpAddr::V6(a) => a.is_unspecified() || a.is_loopback() || a.is_multicast(),
    };
    let many = match ip.destination {
        IpAddr::V4(a) => a.is_multicast() || a == Ipv4Addr::BROADCAST,
        IpAddr::V6(a) => a.is_multicast(),
    };
    let kind = packet.get(ip.length).copied();
    let error = match ip.protocol {
        ICMP if ip.is_v4() => !matches!(kind, Some(0 | 8..=10 | 13..=18)),
        ICMPV6 => kind.is_none_or(|kind| kind < 128),
        _ => false,
    };
    nobody || many || error || ip.later_fragment
}

/// Lets through so many messages a second, and some at once, as the kernel does for its own.
#[derive(Debug)]
pub struct IcmpRateLimit {
    left: u32,
    second: u32,
}

const PER_SECOND: u32 = 1000;

impl Default for IcmpRateLimit {
    fn default() -> Self {
        IcmpRateLimit { left: PER_SECOND, second: 0 }
    }
}

impl IcmpRateLimit {
    pub fn allows(&mut self, second: u32) -> bool {
        if second != self.second {
            *self = IcmpRateLimit { left: PER_SECOND, second };
        }
        self.left = self.left.saturating_sub(1);
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Shape, packet};

    fn about(bytes: &[u8], error: IcmpError) -> Option<IcmpReply> {
        let ip = Header::read(bytes).unwrap();
        icmp_reply(bytes, &ip, ip.total, error)
    }

    #[test]
    fn the_message_quotes_the_packet_and_is_sealed() {
        let bytes = packet(&Shape::default(), &[7; 2000]);
        let message = about(&bytes, IcmpError::TooBig(1300)).unwrap();
        assert_eq!(message.to, IpAddr::from([10, 1, 1, 1]));
        assert_eq!(message.bytes()[..2], [3, 4]);
        assert_eq!(message.bytes()[6..8], 1300u16.to_be_bytes());
        assert_eq!(message.bytes()[8..], bytes[..MOST - 8]);
        assert!(checksum::is_right(checksum::add(0, message.bytes())));
    }

    #[test]
    fn kinds_and_codes_are_those_of_the_protocols() {
        for (v4, error, kind) in [
            (true, IcmpError::HopsExceeded, [11, 0]),
            (true, IcmpError::NoRoute, [3, 0]),
            (false, IcmpError::HopsExceeded, [3, 0]),
            (false, IcmpError::NoRoute, [1, 0]),
            (false, IcmpError::TooBig(1280), [2, 0]),
        ] {
            let message = about(&packet(&Shape { v4, ..Shape::default() }, b"x"), error).unwrap();
            assert_eq!(message.bytes()[..2], kind, "{error:?}");
        }
    }

    #[test]
    fn some_packets_get_no_answer() {
        let usual = packet(&Shape::default(), &[0; 40]);
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = usual.clone();
            change(&mut bytes);
            about(&bytes, IcmpError::NoRoute)
        };
        assert!(with(&|_| {}).is_some());
        assert!(with(&|b| b[7] = 1).is_none(), "a later fragment");
        assert!(with(&|b| b[16] = 224).is_none(), "to a group");
        assert!(with(&|b| b[12..16].fill(0)).is_none(), "from nobody");
        let icmp = |kind| with(&move |b| (b[9], b[20]) = (ICMP, kind));
        assert!(icmp(8).is_some(), "a ping");
        assert!(icmp(3).is_none() && icmp(11).is_none() && icmp(5).is_none(), "an error");
    }

    #[test]
    fn the_pace_is_kept_and_refills() {
        let mut pace = IcmpRateLimit::default();
        assert!((0..2000).filter(|_| pace.allows(9)).count() < 1001);
        assert!(!pace.allows(9));
        assert!(pace.allows(10));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_packet_with_a_header_gets_a_bounded_reply(bytes in prop::collection::vec(any::<u8>(), 0..700), total in 40usize..1500) {
            let reply = Header::read(&bytes).ok().and_then(|ip| icmp_reply(&bytes, &ip, total, IcmpError::TooBig(1400)));
            prop_assert!(reply.is_none_or(|message| message.bytes().len() <= MOST));
        }
    }
}
