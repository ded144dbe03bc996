//! Which of the host's addresses are the node's.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeAddress;

use super::NodeFacts;

/// The addresses in the Node's status; `known` are those that it has. Where a cloud controller writes them, this node only
/// fills in what it was given, until there are any.
pub(super) fn shown_addresses(facts: &NodeFacts, known: Vec<NodeAddress>) -> Vec<NodeAddress> {
    let registration = &facts.registration;
    if registration.external_cloud && !known.is_empty() {
        return known;
    }
    let unasked = registration.external_cloud && registration.node_ips.is_empty();
    let internal =
        facts.signals.addresses.iter().filter(|_| !unasked).map(|ip| ("InternalIP", ip.to_string()));
    internal
        .chain([("Hostname", facts.hostname.clone())])
        .map(|(type_, address)| NodeAddress { type_: type_.to_owned(), address })
        .collect()
}

/// The addresses of the host that pods are told: the first internal one, else the first external one, and the first of the
/// other family.
pub fn host_ips(shown: &[NodeAddress]) -> Vec<IpAddr> {
    let of = |type_: &str| -> Vec<IpAddr> {
        shown.iter().filter(|a| a.type_ == type_).filter_map(|a| a.address.parse().ok()).collect()
    };
    let internal = of("InternalIP");
    let all = if internal.is_empty() { of("ExternalIP") } else { internal };
    let Some(first) = all.first() else { return vec![] };
    let second = all.iter().find(|a| a.is_ipv4() != first.is_ipv4());
    std::iter::once(first).chain(second).copied().collect()
}

/// What can be found out about a host's addresses.
#[derive(Debug, Clone, Default)]
pub struct HostAddresses {
    /// All that it has.
    pub on_host: Vec<IpAddr>,
    /// What its name stands for, in the resolver's order.
    pub of_name: Vec<IpAddr>,
    /// Those of the interface that leads outside, one a family, the primary one first.
    pub by_route: Vec<IpAddr>,
}

/// The node's addresses: those asked for, else one, chosen as a kubelet chooses it: the node's name if that is an address, an
/// address of the host that its name stands for, the one of the interface that leads outside.
pub fn node_addresses(name: &str, asked: &[IpAddr], found: &HostAddresses) -> Vec<IpAddr> {
    let fixed = fixed_addresses(asked);
    if !fixed.is_empty() {
        return fixed;
    }
    // 0.0.0.0 and :: only say which family is preferred.
    let preferred = |a: &IpAddr| a.is_ipv4() == asked.first().is_none_or(IpAddr::is_ipv4);
    let first = |of: &[IpAddr]| of.iter().find(|a| preferred(a)).or(of.first()).copied();
    let of_name: Vec<IpAddr> =
        found.of_name.iter().copied().filter(|a| is_reachable(a) && found.on_host.contains(a)).collect();
    // Without a wish, a family that has the default route goes before one that merely has an address.
    let by_route = if asked.is_empty() { found.by_route.first().copied() } else { first(&found.by_route) };
    name.parse().ok().or_else(|| first(&of_name)).or(by_route).into_iter().collect()
}

/// Neither of this machine alone nor of this link alone.
fn is_reachable(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    };
    !(address.is_loopback() || address.is_multicast() || address.is_unspecified() || link_local)
}

/// Those that stay whatever the host has.
pub fn fixed_addresses(asked: &[IpAddr]) -> Vec<IpAddr> {
    asked.iter().copied().filter(|a| !a.is_unspecified()).collect()
}

/// The addresses after the host's network was read again. An address that the host still has stays the node's, whichever
/// interface came up since; one that it lost is replaced, but never by loopback: the network may be back in a moment.
pub fn next_addresses(current: &[IpAddr], on_host: &[IpAddr], chosen: &[IpAddr]) -> Vec<IpAddr> {
    if chosen.iter().all(IpAddr::is_loopback) {
        return current.to_vec();
    }
    let lost = |a: &IpAddr| a.is_loopback() || !on_host.contains(a);
    if current.iter().any(lost) { chosen.to_vec() } else { current.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn what_is_asked_for_is_shown_else_one_as_a_kubelet_chooses_it() {
        let both = &["192.0.2.1", "2001:db8::1"][..];
        for (case, name, asked, of_name, by_route, expected) in [
            ("asked for", "n", &["198.51.100.7"][..], both, both, &["198.51.100.7"][..]),
            ("two asked for", "n", &["198.51.100.7", "::7"], both, both, &["198.51.100.7", "::7"]),
            ("the name is an address", "203.0.113.5", &[], both, both, &["203.0.113.5"]),
            ("the name stands for one", "n", &[], &["192.0.2.2"], both, &["192.0.2.2"]),
            ("of both families the wished one", "n", &["::"], both, &["192.0.2.2"], &["2001:db8::1"]),
            ("the name stands for loopback", "n", &[], &["127.0.1.1"], both, &["192.0.2.1"]),
            ("the name stands for another host", "n", &[], &["203.0.113.9"], both, &["192.0.2.1"]),
            (
                "the interface that leads outside",
                "n",
                &[],
                &[],
                &["2001:db8::1", "192.0.2.1"],
                &["2001:db8::1"],
            ),
            (
                "the wished family of it",
                "n",
                &["0.0.0.0"],
                &[],
                &["2001:db8::1", "192.0.2.1"],
                &["192.0.2.1"],
            ),
            ("the other family is all there is", "n", &["::"], &[], &["192.0.2.1"], &["192.0.2.1"]),
        ] {
            let found = HostAddresses {
                on_host: ips(&["192.0.2.1", "192.0.2.2", "2001:db8::1", "127.0.1.1"]),
                of_name: ips(of_name),
                by_route: ips(by_route),
            };
            assert_eq!(node_addresses(name, &ips(asked), &found), ips(expected), "{case}");
        }
    }

    #[test]
    fn an_address_stays_for_as_long_as_the_host_has_it() {
        for (case, current, on_host, chosen, expected) in [
            (
                "nothing changed",
                &["192.0.2.1"][..],
                &["192.0.2.1"][..],
                &["192.0.2.1"][..],
                &["192.0.2.1"][..],
            ),
            (
                "another interface came up and would be chosen now",
                &["192.0.2.1"],
                &["192.0.2.1", "198.51.100.1"],
                &["198.51.100.1"],
                &["192.0.2.1"],
            ),
            ("the host got another address", &["192.0.2.1"], &["192.0.2.9"], &["192.0.2.9"], &["192.0.2.9"]),
            ("the network is down", &["192.0.2.1"], &["127.0.0.1"], &["127.0.0.1"], &["192.0.2.1"]),
            (
                "the network came after the agent",
                &["127.0.0.1"],
                &["127.0.0.1", "192.0.2.1"],
                &["192.0.2.1"],
                &["192.0.2.1"],
            ),
            (
                "the other family came later",
                &["192.0.2.1"],
                &["192.0.2.1", "2001:db8::1"],
                &["2001:db8::1"],
                &["192.0.2.1"],
            ),
        ] {
            let next = next_addresses(&ips(current), &ips(on_host), &ips(chosen));
            assert_eq!(next, ips(expected), "{case}");
        }
    }
}
