//! Names and numbers of network objects, checked when they are made.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An interface's number within its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfIndex(pub u32);

/// An interface name that the kernel would accept.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfName(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IfNameError {
    #[error("an interface name may not be empty")]
    Empty,
    #[error("interface name {0:?} is too long: it has {len} bytes, the kernel takes at most 15", len = .0.len())]
    TooLong(String),
    #[error(
        "interface name {0:?} is not allowed: it may not be '.' or '..' nor hold '/', ':', '%' or white space"
    )]
    BadCharacter(String),
}

impl IfName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for IfName {
    type Error = IfNameError;

    fn try_from(name: &str) -> Result<Self, IfNameError> {
        if name.is_empty() {
            return Err(IfNameError::Empty);
        }
        if name.len() > 15 {
            return Err(IfNameError::TooLong(name.to_owned()));
        }
        // '%' makes the kernel treat the name as a pattern to number, so it never names one interface.
        let bad = |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace() || c.is_control();
        if name == "." || name == ".." || name.chars().any(bad) {
            return Err(IfNameError::BadCharacter(name.to_owned()));
        }
        Ok(IfName(name.to_owned()))
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    pub const ZERO: Mac = Mac([0; 6]);
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an Ethernet address; six bytes such as \"0a:58:0a:01:02:03\" are expected")]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;

    /// Reads `aa:bb:cc:dd:ee:ff`, `aa-bb-cc-dd-ee-ff` and `aabb.ccdd.eeff`.
    fn from_str(text: &str) -> Result<Self, MacError> {
        let bad = || MacError(text.to_owned());
        let digits: String = if text.len() == 17 {
            let separator = if text.as_bytes()[2] == b'-' { '-' } else { ':' };
            let parts: Vec<&str> = text.split(separator).collect();
            if parts.len() != 6 || parts.iter().any(|p| p.len() != 2) {
                return Err(bad());
            }
            parts.concat()
        } else if text.len() == 14 {
            let parts: Vec<&str> = text.split('.').collect();
            if parts.len() != 3 || parts.iter().any(|p| p.len() != 4) {
                return Err(bad());
            }
            parts.concat()
        } else {
            return Err(bad());
        };
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut mac = [0; 6];
        for (i, byte) in mac.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
        }
        Ok(Mac(mac))
    }
}

/// An address with the length of its network's prefix; the host bits are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IpNet {
    pub addr: IpAddr,
    pub prefix: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address with a prefix length, such as \"10.1.2.3/24\" or \"fd00::3/64\"")]
pub struct IpNetError(String);

impl IpNet {
    pub fn new(addr: IpAddr, prefix: u8) -> Self {
        IpNet { addr, prefix }
    }

    pub fn is_v4(&self) -> bool {
        self.addr.is_ipv4()
    }

    /// The first address of the network, with all host bits cleared.
    pub fn network(&self) -> IpNet {
        let addr = match self.addr {
            IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask4(self.prefix))),
            IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask6(self.prefix))),
        };
        IpNet { addr, prefix: self.prefix }
    }

    /// The last address of the network, with all host bits set.
    pub fn last(&self) -> IpAddr {
        match self.addr {
            IpAddr::V4(a) => IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() | !mask4(self.prefix))),
            IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() | !mask6(self.prefix))),
        }
    }

    pub fn contains(&self, addr: IpAddr) -> bool {
        self.addr.is_ipv4() == addr.is_ipv4()
            && IpNet { addr, prefix: self.prefix }.network().addr == self.network().addr
    }

    /// Whether the two networks share any address.
    pub fn overlaps(&self, other: &IpNet) -> bool {
        self.contains(other.addr) || other.contains(self.addr)
    }
}

impl fmt::Display for IpNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

impl FromStr for IpNet {
    type Err = IpNetError;

    fn from_str(text: &str) -> Result<Self, IpNetError> {
        let bad = || IpNetError(text.to_owned());
        let (addr, prefix) = text.split_once('/').ok_or_else(bad)?;
        let addr: IpAddr = addr.parse().map_err(|_| bad())?;
        if prefix.is_empty() || prefix.len() > 3 || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let prefix: u8 = prefix.parse().map_err(|_| bad())?;
        let most = if addr.is_ipv4() { 32 } else { 128 };
        if prefix > most {
            return Err(bad());
        }
        Ok(IpNet { addr, prefix })
    }
}

fn mask4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

fn mask6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_are_those_the_kernel_takes() {
        for good in ["eth0", "a", "cni0.100", "veth0123456789a"] {
            assert!(IfName::try_from(good).is_ok(), "{good} should be allowed");
        }
        for bad in ["", ".", "..", "a/b", "a:b", "a b", "eth%d", "0123456789abcdef", "tab\there", "nul\0"] {
            assert!(IfName::try_from(bad).is_err(), "{bad:?} should be refused");
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
            let net: IpNet = text.parse().unwrap();
            assert_eq!(net.network().to_string(), network);
            assert_eq!(net.last().to_string(), last);
        }
    }

    #[test]
    fn networks_that_are_not_written_right_are_refused() {
        for bad in ["", "10.1.2.3", "10.1.2.3/33", "::/129", "10.1.2/24", "10.1.2.3/+4", "10.1.2.3/ 4", "x/1"]
        {
            assert!(bad.parse::<IpNet>().is_err(), "{bad:?} should be refused");
        }
    }

    #[test]
    fn ethernet_addresses_are_read_in_the_three_usual_spellings() {
        let mac = Mac([0x0a, 0x58, 0x0a, 1, 2, 3]);
        for text in ["0a:58:0a:01:02:03", "0A-58-0a-01-02-03", "0a58.0a01.0203"] {
            assert_eq!(text.parse(), Ok(mac));
        }
        for bad in
            ["", "0a:58:0a:01:02", "0a:58:0a:01:02:zz", "0a:58-0a:01:02:03", "+1:58:0a:01:02:03", "ééééééééé"]
        {
            assert!(bad.parse::<Mac>().is_err(), "{bad:?} should be refused");
        }
    }
}
