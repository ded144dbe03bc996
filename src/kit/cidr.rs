//! Networks in CIDR notation: ipnetwork's type, behind a parser that takes nothing else, and what that crate lacks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address with a prefix length, such as \"10.1.2.3/24\" or \"fd00::3/64\"")]
pub struct CidrError(String);

/// Reads ADDRESS/LENGTH. ipnetwork's own reader also takes a bare address and a dotted mask, which in a configuration
/// are mistakes. Bits behind the length are kept: an address with the length of its network is written the same way.
pub fn parse_cidr(text: &str) -> Result<IpNetwork, CidrError> {
    let wrong = || CidrError(text.to_owned());
    let (address, length) = text.split_once('/').ok_or_else(wrong)?;
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    // Digits only: u8's reader also takes a sign, and any number of leading zeros.
    let plain = length.len() <= 3 && length.bytes().all(|b| b.is_ascii_digit());
    let length = length.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
    IpNetwork::new(address, length).map_err(|_| wrong())
}

/// An address with the length of its network's prefix. A length that the family does not have leaves the address alone.
pub fn with_length(address: IpAddr, length: u8) -> IpNetwork {
    IpNetwork::new(address, length).unwrap_or(address.into())
}

/// The network itself: the bits behind the length are cleared.
pub fn truncated(net: IpNetwork) -> IpNetwork {
    with_length(net.network(), net.prefix())
}

/// All addresses of a family.
pub fn everything(v4: bool) -> IpNetwork {
    with_length(from_number(0, v4), 0)
}

/// Whether the two networks share any address.
pub fn overlap(a: IpNetwork, b: IpNetwork) -> bool {
    a.contains(b.ip()) || b.contains(a.ip())
}

/// An address as a number, to count and to compare with.
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// The address with that number; of a number too large for IPv4 the low bits.
pub fn from_number(number: u128, v4: bool) -> IpAddr {
    match v4 {
        true => Ipv4Addr::from_bits(number as u32).into(),
        false => Ipv6Addr::from_bits(number).into(),
    }
}

/// The address behind this one. The last of a family is followed by its first.
pub fn next(address: IpAddr) -> IpAddr {
    from_number(number(address).wrapping_add(1), address.is_ipv4())
}

/// An address, or a mask, as it goes on the wire.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_address_and_length_make_a_network() {
        for good in ["10.0.0.0/8", "10.1.2.3/24", "fd00::1/64", "0.0.0.0/0", "::/0", "192.0.2.1/32"] {
            assert_eq!(parse_cidr(good).map(|n| n.to_string()), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "10.1.2.3",
            "10.0.0.0/255.0.0.0",
            "10.0.0.0/33",
            "fd00::/129",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "10.0.0.0/0008",
            "10.0.0.0/ 8",
            "/8",
            "10.0.0/8",
            " 10.0.0.0/8",
        ] {
            let said = parse_cidr(bad).map_err(|e| e.to_string());
            assert!(said.is_err_and(|e| e.contains(&format!("{bad:?}"))), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_network_is_its_address_with_the_host_bits_cleared() {
        for (text, network, last) in [
            ("10.1.2.3/24", "10.1.2.0/24", "10.1.2.255"),
            ("10.1.2.3/0", "0.0.0.0/0", "255.255.255.255"),
            ("10.1.2.3/32", "10.1.2.3/32", "10.1.2.3"),
            ("fd00::5/64", "fd00::/64", "fd00::ffff:ffff:ffff:ffff"),
            ("::1/0", "::/0", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let net = parse_cidr(text).unwrap();
            assert_eq!(
                (truncated(net).to_string(), net.broadcast().to_string()),
                (network.into(), last.into())
            );
        }
    }

    #[test]
    fn addresses_are_counted_round_their_own_family() {
        for (address, behind) in [
            ("10.0.0.255", "10.0.1.0"),
            ("255.255.255.255", "0.0.0.0"),
            ("fd00::ffff", "fd00::1:0"),
            ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(next(address).to_string(), behind);
            assert_eq!(from_number(number(address), address.is_ipv4()), address);
        }
    }

    #[test]
    fn networks_overlap_when_one_holds_the_other() {
        for (a, b, shared) in [
            ("10.1.0.0/16", "10.1.2.3/24", true),
            ("10.1.2.0/24", "10.1.3.0/24", false),
            ("0.0.0.0/0", "::/0", false),
            ("fd00::/64", "fd00::5/128", true),
        ] {
            let (a, b) = (parse_cidr(a).unwrap(), parse_cidr(b).unwrap());
            assert_eq!((overlap(a, b), overlap(b, a)), (shared, shared), "{a} {b}");
        }
    }
}
