//! Ranges of addresses, and sets of ranges that serve one address each.

use std::fmt;
use std::net::IpAddr;

use keelson_kit::cidr::{self, IpNetwork, from_number, number};

/// A checked range: start and end are inside the subnet and in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub subnet: IpNetwork,
    pub start: IpAddr,
    pub end: IpAddr,
    pub gateway: IpAddr,
}

/// Ranges of one family that do not overlap; a container gets one address out of each set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(pub Vec<Range>);

/// A range as it is written, with defaults to be filled in.
#[derive(Debug, Clone)]
pub struct Draft {
    pub subnet: IpNetwork,
    pub start: Option<IpAddr>,
    pub end: Option<IpAddr>,
    pub gateway: Option<IpAddr>,
}

impl Range {
    /// Checks a range and fills in what is not given: the first address is the gateway's, the range goes
    /// from there to the last address, leaving out IPv4's broadcast address.
    pub fn check(draft: Draft) -> Result<Self, String> {
        let Draft { subnet, start, end, gateway } = draft;
        let (address, length) = (subnet.ip().to_canonical(), subnet.prefix());
        let smallest = if address.is_ipv4() { 30 } else { 126 };
        if length > smallest {
            return Err(format!(
                "network {address}/{length} is too small to allocate from; /{smallest} is the smallest"
            ));
        }
        let subnet = cidr::with_length(address, length);
        let network = cidr::truncated(subnet);
        if network != subnet {
            return Err(format!("network {subnet} has host bits set; its address is {network}"));
        }
        let first = cidr::next(address);
        let broadcast = u128::from(subnet.is_ipv4());
        let last = from_number(number(subnet.broadcast()) - broadcast, subnet.is_ipv4());
        let range = Range {
            subnet,
            start: start.map_or(first, |a| a.to_canonical()),
            end: end.map_or(last, |a| a.to_canonical()),
            gateway: gateway.map_or(first, |a| a.to_canonical()),
        };
        for (key, addr) in [("rangeStart", range.start), ("rangeEnd", range.end)] {
            if !subnet.contains(addr) {
                return Err(format!("{key} {addr} is not in network {subnet}"));
            }
        }
        if number(range.start) > number(range.end) {
            return Err(format!("rangeStart {} is after rangeEnd {}", range.start, range.end));
        }
        Ok(range)
    }

    pub fn contains(&self, addr: IpAddr) -> bool {
        self.subnet.contains(addr) && (number(self.start)..=number(self.end)).contains(&number(addr))
    }

    pub fn overlaps(&self, other: &Range) -> bool {
        self.contains(other.start) || self.contains(other.end) || other.contains(self.start)
    }
}

impl RangeSet {
    pub fn check(drafts: Vec<Draft>) -> Result<Self, String> {
        let ranges = drafts.into_iter().map(Range::check).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = ranges.first() else { return Err("it is empty".into()) };
        if ranges.iter().any(|r| r.subnet.is_ipv4() != first.subnet.is_ipv4()) {
            return Err("it mixes IPv4 and IPv6; give each family a range set of its own".into());
        }
        for (i, a) in ranges.iter().enumerate() {
            if let Some(b) = ranges[i + 1..].iter().find(|b| a.overlaps(b)) {
                return Err(format!("its ranges {a} and {b} overlap"));
            }
        }
        Ok(RangeSet(ranges))
    }

    pub fn is_v4(&self) -> bool {
        self.0.first().is_some_and(|r| r.subnet.is_ipv4())
    }

    pub fn range_of(&self, addr: IpAddr) -> Option<&Range> {
        self.0.iter().find(|r| r.contains(addr))
    }

    pub fn overlaps(&self, other: &RangeSet) -> bool {
        self.0.iter().any(|a| other.0.iter().any(|b| a.overlaps(b)))
    }

    /// Every address of the set but the gateways, once, starting after `last` and going round.
    ///
    /// Going round makes a container that restarts again and again use up the whole set before it sees an
    /// address a second time.
    pub fn candidates(&self, last: Option<IpAddr>) -> impl Iterator<Item = (IpAddr, &Range)> {
        let at = last.and_then(|last| self.0.iter().position(|r| r.contains(last)).map(|i| (i, last)));
        let (begin, after) = match at {
            Some((i, last)) => (i, Some(number(last))),
            None => (0, None),
        };
        let count = self.0.len();
        // The range that holds `last` is visited twice: what comes after it first, the rest at the end.
        (0..=count).flat_map(move |step| {
            let range = &self.0[(begin + step) % count];
            let (from, to) = (number(range.start), number(range.end));
            let span = match (step, after) {
                (0, Some(last)) => last.checked_add(1).map(|next| next..=to),
                (s, Some(last)) if s == count => Some(from..=last),
                (s, None) if s == count => None,
                _ => Some(from..=to),
            };
            span.into_iter()
                .flatten()
                .map(move |n| (from_number(n, range.subnet.is_ipv4()), range))
                .filter(|(addr, range)| *addr != range.gateway)
        })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "range_tests.rs"]
mod tests;
