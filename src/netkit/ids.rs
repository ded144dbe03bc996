//! Names and numbers of network objects, checked when they are made.

use std::fmt;
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
