//! Chooses the underlay: the interface that hosts reach each other by.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::addr::{self, Family};
use keelson_netkit::link::{self, Link};
use keelson_netkit::{Error, IfIndex, Socket, route};
use regex_lite::Regex;

use crate::config::InterfaceChoice;

/// The chosen interface, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    pub name: String,
    pub index: IfIndex,
    pub mtu: u32,
    pub nets: Vec<IpNetwork>,
    /// The address of each family that packets leave from.
    pub v4: Option<IpAddr>,
    pub v6: Option<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum UnderlayError {
    #[error("no interface fits {asked}; there are: {there}")]
    NoneFits { asked: String, there: String },
    #[error("{name} is the interface to use, but it has no {family} address that others could reach")]
    NoAddress { name: String, family: &'static str },
    #[error("--iface-regex {pattern:?} is not a regular expression: {why}")]
    Pattern { pattern: String, why: String },
    #[error("cannot determine the interface to use: {0}")]
    Kernel(#[from] Error),
}

/// The route to a remote address shows where the default route leads; documentation addresses are never local.
const FAR4: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
const FAR6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0xffff, 0, 0, 0, 1));

/// The addresses whose routes show where the default route leads.
pub fn far() -> impl Iterator<Item = IpAddr> {
    [FAR4, FAR6].into_iter()
}

/// Interfaces as values, so that the choice can be tested without any.
#[derive(Debug, Clone)]
struct InterfaceCandidate {
    link: Link,
    nets: Vec<IpNetwork>,
}

/// The interfaces that packets to some addresses leave by.
#[derive(Debug, Clone, Copy, Default)]
struct EgressLinks {
    default4: Option<IfIndex>,
    default6: Option<IfIndex>,
    asked: Option<IfIndex>,
}

/// Chooses by name, then by pattern, then by route. `public` are configured addresses: an interface that has one of them
/// is preferred to the default route.
pub fn choose(
    socket: &mut Socket,
    choice: &InterfaceChoice,
    public: &[IpAddr],
    families: (bool, bool),
) -> Result<Underlay, UnderlayError> {
    let mut candidates = Vec::new();
    for link in link::list(socket)? {
        let nets = addr::list(socket, &link, Family::Any)?.into_iter().map(|a| a.net).collect();
        candidates.push(InterfaceCandidate { link, nets });
    }
    let mut link_to = |addr: IpAddr| route::link_towards(socket, addr).ok().flatten();
    let mut egress = EgressLinks { default4: link_to(FAR4), default6: link_to(FAR6), asked: None };
    if let Some(target) = choice.towards {
        egress.asked = route::link_towards(socket, target)?;
    }
    select(&candidates, choice, public, egress, families)
}

fn select(
    candidates: &[InterfaceCandidate],
    choice: &InterfaceChoice,
    public: &[IpAddr],
    egress: EgressLinks,
    families: (bool, bool),
) -> Result<Underlay, UnderlayError> {
    let holds = |c: &InterfaceCandidate, addr: IpAddr| c.nets.iter().any(|net| net.ip() == addr);
    for asked in &choice.named {
        let fits = |c: &&InterfaceCandidate| match asked.parse() {
            Ok(addr) => holds(c, addr),
            Err(_) => c.link.name == *asked,
        };
        if let Some(found) = candidates.iter().find(fits) {
            return underlay(found, asked.parse().ok(), families);
        }
    }
    for pattern in &choice.matching {
        let regex = Regex::new(pattern)
            .map_err(|e| UnderlayError::Pattern { pattern: pattern.clone(), why: e.to_string() })?;
        let by_address = candidates.iter().find_map(|c| {
            let net = c.nets.iter().find(|net| regex.is_match(&net.ip().to_string()))?;
            Some((c, Some(net.ip())))
        });
        let by_name = || candidates.iter().find(|c| regex.is_match(&c.link.name)).map(|c| (c, None));
        if let Some((found, addr)) = by_address.or_else(by_name) {
            return underlay(found, addr, families);
        }
    }
    let by_index = |index: Option<IfIndex>| candidates.iter().find(|c| Some(c.link.index) == index);
    if let Some(found) = by_index(egress.asked) {
        return underlay(found, None, families);
    }
    let free = choice.named.is_empty() && choice.matching.is_empty() && choice.towards.is_none();
    if free {
        for addr in public {
            if let Some(found) = candidates.iter().find(|c| holds(c, *addr)) {
                return underlay(found, Some(*addr), families);
            }
        }
        let default = if families.0 { egress.default4 } else { egress.default6 };
        if let Some(found) = by_index(default) {
            return underlay(found, None, families);
        }
    }
    let there: Vec<String> = candidates
        .iter()
        .map(|c| {
            let addresses: Vec<String> = c.nets.iter().map(|net| net.ip().to_string()).collect();
            format!("{} ({})", c.link.name, addresses.join(" "))
        })
        .collect();
    Err(UnderlayError::NoneFits { asked: asked(choice), there: there.join(", ") })
}

fn asked(choice: &InterfaceChoice) -> String {
    let mut parts: Vec<String> = choice.named.iter().map(|n| format!("--iface {n}")).collect();
    parts.extend(choice.matching.iter().map(|m| format!("--iface-regex {m}")));
    parts.extend(choice.towards.map(|t| format!("--iface-can-reach {t}")));
    if parts.is_empty() { "the default route, of which there is none".into() } else { parts.join(", ") }
}

/// `preferred` is the address that was configured.
fn underlay(
    found: &InterfaceCandidate,
    preferred: Option<IpAddr>,
    families: (bool, bool),
) -> Result<Underlay, UnderlayError> {
    let first = |v4: bool| {
        let usable = |addr: &IpAddr| match addr {
            IpAddr::V4(a) => v4 && !a.is_link_local(),
            IpAddr::V6(a) => !v4 && !a.is_unicast_link_local(),
        };
        preferred.filter(usable).or_else(|| found.nets.iter().map(|net| net.ip()).find(usable))
    };
    let name = found.link.name.clone();
    let (v4, v6) = (first(true), first(false));
    for (wanted, addr, family) in [(families.0, v4, "IPv4"), (families.1, v6, "IPv6")] {
        if wanted && addr.is_none() {
            return Err(UnderlayError::NoAddress { name, family });
        }
    }
    let (index, mtu, nets) = (found.link.index, found.link.mtu, found.nets.clone());
    Ok(Underlay { name, index, mtu, nets, v4, v6 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(index: u32, name: &str, nets: &[&str]) -> InterfaceCandidate {
        let link = Link {
            index: IfIndex(index),
            name: name.into(),
            kind: None,
            mac: None,
            mtu: 1500,
            flags: 1,
            master: None,
            peer: None,
            operational: true,
            promiscuity: 0,
            vlan_filtering: false,
        };
        InterfaceCandidate { link, nets: nets.iter().map(|n| n.parse().unwrap()).collect() }
    }

    #[test]
    fn names_come_before_patterns_and_patterns_before_routes() {
        let there = [
            candidate(1, "lo", &["127.0.0.1/8"]),
            candidate(2, "eth0", &["192.0.2.1/24", "fe80::1/64", "2001:db8::1/64"]),
            candidate(3, "eth1", &["10.9.0.1/16", "10.9.0.2/16"]),
        ];
        let egress = EgressLinks { default4: Some(IfIndex(2)), default6: Some(IfIndex(2)), asked: None };
        let list = |items: &[&str]| items.iter().map(|i| (*i).to_owned()).collect::<Vec<_>>();
        type Case<'a> = (&'a str, &'a [&'a str], &'a [&'a str], Option<&'a str>, &'a str, &'a str);
        let cases: [Case; 7] = [
            ("the default route", &[], &[], None, "eth0", "192.0.2.1"),
            ("a name", &["eth1"], &[], None, "eth1", "10.9.0.1"),
            ("an address", &["10.9.0.2"], &[], None, "eth1", "10.9.0.2"),
            ("the second name, the first not being there", &["eth9", "eth0"], &[], None, "eth0", "192.0.2.1"),
            ("a pattern of addresses", &[], &[r"^10\.9\."], None, "eth1", "10.9.0.1"),
            ("a pattern of names", &["eth9"], &["th1$"], None, "eth1", "10.9.0.1"),
            ("the holder of the public address", &[], &[], Some("10.9.0.2"), "eth1", "10.9.0.2"),
        ];
        for (name, named, matching, public, expected, addr) in cases {
            let choice = InterfaceChoice { named: list(named), matching: list(matching), towards: None };
            let public: Vec<IpAddr> = public.iter().map(|p| p.parse().unwrap()).collect();
            let got = select(&there, &choice, &public, egress, (true, false)).unwrap();
            assert_eq!((got.name.as_str(), got.v4), (expected, addr.parse().ok()), "{name}");
        }
        let none = InterfaceChoice { named: list(&["eth9"]), ..InterfaceChoice::default() };
        let error = select(&there, &none, &[], egress, (true, false)).unwrap_err().to_string();
        assert!(error.contains("--iface eth9") && error.contains("eth1 (10.9.0.1 10.9.0.2)"), "{error}");
        let bad = InterfaceChoice { matching: list(&["("]), ..InterfaceChoice::default() };
        assert!(matches!(
            select(&there, &bad, &[], egress, (true, false)),
            Err(UnderlayError::Pattern { .. })
        ));
        let six = InterfaceChoice { named: list(&["eth1"]), ..InterfaceChoice::default() };
        let error = select(&there, &six, &[], egress, (true, true)).unwrap_err().to_string();
        assert!(error.contains("eth1") && error.contains("IPv6"), "{error}");
    }
}
