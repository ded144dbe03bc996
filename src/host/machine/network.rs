//! The machine's addresses, and which of them others should use.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub up: bool,
    pub loopback: bool,
    pub addresses: Vec<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot list the network interfaces: {0}")]
pub struct NetworkError(#[from] std::io::Error);

/// The interfaces that have an address, by name.
pub fn interfaces() -> Result<Vec<Interface>, NetworkError> {
    let mut found: BTreeMap<String, Interface> = BTreeMap::new();
    for entry in getifaddrs().map_err(std::io::Error::from)? {
        let Some(address) = entry.address else { continue };
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let v6 = address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
        let Some(ip) = v4.or(v6) else { continue };
        let interface = found.entry(entry.interface_name.clone()).or_insert_with(|| Interface {
            name: entry.interface_name,
            up: entry.flags.contains(InterfaceFlags::IFF_UP),
            loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
            addresses: vec![],
        });
        interface.addresses.push(ip);
    }
    Ok(found.into_values().collect())
}

/// The addresses by which others reach this machine, one a family, the primary one first: those of the interface that
/// the default route leaves by, else of any interface that is up. A machine that has none at all has its loopback.
pub fn host_addresses(proc: &Path) -> Result<Vec<IpAddr>, NetworkError> {
    let read = |file: &str| fs::read_to_string(proc.join("net").join(file)).unwrap_or_default();
    Ok(choose(
        &interfaces()?,
        default_v4(&read("route")).as_deref(),
        default_v6(&read("ipv6_route")).as_deref(),
    ))
}

fn choose(interfaces: &[Interface], default_v4: Option<&str>, default_v6: Option<&str>) -> Vec<IpAddr> {
    let pick = |default: Option<&str>, family: fn(&IpAddr) -> bool| {
        let usable = |i: &&Interface| i.up && !i.loopback;
        let on = |i: &Interface| i.addresses.iter().copied().find(|a| family(a) && is_global(a));
        let by_route =
            interfaces.iter().filter(usable).filter(|i| Some(i.name.as_str()) == default).find_map(on);
        by_route.or_else(|| {
            interfaces.iter().filter(usable).filter(|i| !is_container_bridge(&i.name)).find_map(on)
        })
    };
    let v4 = pick(default_v4, IpAddr::is_ipv4);
    let v6 = pick(default_v6, IpAddr::is_ipv6);
    // A family that has the default route goes before one that merely has an address.
    let mut chosen = vec![(default_v4.is_none(), v4), (default_v6.is_none(), v6)];
    chosen.sort_by_key(|(without_route, _)| *without_route);
    let found: Vec<IpAddr> = chosen.into_iter().filter_map(|(_, address)| address).collect();
    if found.is_empty() { vec![IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)] } else { found }
}

/// Bridges and links of pods carry addresses that nobody outside can reach.
fn is_container_bridge(name: &str) -> bool {
    ["cni", "docker", "veth", "flannel", "keelson", "br-", "virbr"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

fn is_global(address: &IpAddr) -> bool {
    let link_local_v6 = |a: &Ipv6Addr| (a.segments()[0] & 0xffc0) == 0xfe80;
    match address {
        IpAddr::V4(a) => !a.is_loopback() && !a.is_link_local() && !a.is_unspecified() && !a.is_multicast(),
        IpAddr::V6(a) => !a.is_loopback() && !link_local_v6(a) && !a.is_unspecified() && !a.is_multicast(),
    }
}

const ROUTE_UP: u32 = 1;

/// From /proc/net/route: destination and mask are zero, of several the one with the smallest metric.
fn default_v4(table: &str) -> Option<String> {
    let routes = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, destination, _gateway, flags, _, _, metric, mask, ..] = words[..] else { return None };
        let up = u32::from_str_radix(flags, 16).ok()? & ROUTE_UP != 0;
        let default = destination == "00000000" && mask == "00000000";
        (up && default).then_some((metric.parse::<u32>().ok()?, name.to_owned()))
    });
    routes.min().map(|(_, name)| name)
}

/// From /proc/net/ipv6_route, where all numbers are hexadecimal.
fn default_v6(table: &str) -> Option<String> {
    let routes = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [destination, length, _, _, _, metric, _, _, flags, name] = words[..] else { return None };
        let up = u32::from_str_radix(flags, 16).ok()? & ROUTE_UP != 0;
        let default = length == "00" && destination.bytes().all(|b| b == b'0');
        (up && default && name != "lo").then_some((u32::from_str_radix(metric, 16).ok()?, name.to_owned()))
    });
    routes.min().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth1\t00000000\t0102A8C0\t0003\t0\t0\t200\t00000000\t0\t0\t0\n\
        eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
        eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n";
    const ROUTES_V6: &str = "\
        fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000002 00000000 00000003     eth0\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n";

    fn interface(name: &str, addresses: &[&str]) -> Interface {
        let addresses = addresses.iter().map(|a| a.parse().expect("address")).collect();
        Interface { name: name.into(), up: true, loopback: name == "lo", addresses }
    }

    #[test]
    fn the_default_route_names_its_interface() {
        assert_eq!(default_v4(ROUTES).as_deref(), Some("eth0"), "the smaller metric");
        assert_eq!(default_v4("Iface Destination\n"), None);
        assert_eq!(default_v6(ROUTES_V6).as_deref(), Some("eth0"));
        assert_eq!(default_v6("garbage line\n"), None);
    }

    #[test]
    fn addresses_are_chosen_by_route_then_by_what_is_there() {
        let all = [
            interface("cni0", &["10.244.0.1"]),
            interface("eth0", &["169.254.1.1", "192.168.1.5", "fe80::1", "fd00::5"]),
            interface("eth1", &["192.168.2.5"]),
            interface("lo", &["127.0.0.1", "::1"]),
        ];
        type Case = (&'static str, Option<&'static str>, Option<&'static str>, &'static [&'static str]);
        let cases: [Case; 4] = [
            ("both routes", Some("eth0"), Some("eth0"), &["192.168.1.5", "fd00::5"]),
            ("another interface", Some("eth1"), None, &["192.168.2.5", "fd00::5"]),
            ("no route at all", None, None, &["192.168.1.5", "fd00::5"]),
            ("only a v6 route", None, Some("eth0"), &["fd00::5", "192.168.1.5"]),
        ];
        for (case, v4, v6, expected) in cases {
            let expected: Vec<IpAddr> = expected.iter().map(|a| a.parse().expect("address")).collect();
            assert_eq!(choose(&all, v4, v6), expected, "{case}");
        }
        let alone = [interface("lo", &["127.0.0.1"])];
        assert_eq!(choose(&alone, None, None), ["127.0.0.1".parse::<IpAddr>().expect("address")]);
    }

    #[test]
    fn this_machine_has_a_loopback() {
        let found = interfaces().expect("interfaces");
        assert!(found.iter().any(|i| i.loopback), "{found:?}");
        assert!(!host_addresses(Path::new("/proc")).expect("addresses").is_empty());
    }
}
