//! What is asked of the kernel is what it has afterwards, in a namespace of the test's own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::IpAddr;

use keelson_netkit::addr::{self, Family};
use keelson_netkit::link::{self, Link, VethEnd};
use keelson_netkit::monitor::Change;
use keelson_netkit::route::{self, Route};
use keelson_netkit::vxlan::{self, Tunnel};
use keelson_netkit::{IfIndex, IfName, Mac, Monitor, NetNs, Socket, neigh};
use keelson_require::{network_namespaces, require};

const MAC: Mac = Mac([0x0a, 0x58, 0x0a, 1, 2, 3]);
const FAR_MAC: Mac = Mac([0x0a, 0x58, 0x0a, 1, 2, 4]);

fn name(text: &str) -> IfName {
    IfName::try_from(text).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A namespace with a socket in it, and in the other one with the far end of a veth pair whose near end is br0's port.
fn world() -> (Socket, Socket, Link) {
    let (near, far) = (NetNs::anonymous().unwrap(), NetNs::anonymous().unwrap());
    let mut socket = near.run(Socket::route).unwrap();
    let inside = far.run(Socket::route).unwrap();
    socket.call(link::new_bridge(&name("br0"), Some(MAC), Some(1400), false)).unwrap();
    let bridge = link::get_by_name(&mut socket, "br0").unwrap();
    let ends = |n| VethEnd { name: n, mac: None, mtu: Some(1400) };
    let (port, eth0) = (name("port0"), name("eth0"));
    let far_end = VethEnd { mac: Some(FAR_MAC), ..ends(&eth0) };
    socket.call(link::new_veth(&ends(&port), Some(bridge.index), &far_end, Some(far.fd()))).unwrap();
    (socket, inside, bridge)
}

#[test]
fn links_are_made_with_all_they_were_asked_for() {
    require!(network_namespaces());
    let (mut socket, mut inside, bridge) = world();
    assert!(bridge.is_kind("bridge") && bridge.is_up());
    assert_eq!((bridge.mac, bridge.mtu), (Some(MAC), 1400));
    let port = link::get_by_name(&mut socket, "port0").unwrap();
    let eth0 = link::get_by_name(&mut inside, "eth0").unwrap();
    assert!(port.is_kind("veth") && port.is_up() && !eth0.is_up());
    assert_eq!((port.master, port.peer, eth0.peer), (Some(bridge.index), Some(eth0.index), Some(port.index)));
    assert_eq!((eth0.mac, eth0.mtu, port.mtu), (Some(FAR_MAC), 1400, 1400));
    assert_eq!(link::get_by_index(&mut inside, eth0.index).unwrap(), eth0);
    assert!(link::list(&mut inside).unwrap().contains(&eth0));

    let changes = [
        link::set_up(&eth0),
        link::set_mac(&eth0, MAC),
        link::set_mtu(&eth0, 1300),
        link::set_promiscuous(&eth0),
    ];
    assert!(inside.pipeline(changes.into()).unwrap().iter().all(Result::is_ok));
    let changed = link::get_by_name(&mut inside, "eth0").unwrap();
    assert_eq!((changed.is_up(), changed.mac, changed.mtu, changed.promiscuity), (true, Some(MAC), 1300, 1));
    inside.call(link::set_down(&changed)).unwrap();
    inside.call(link::rename(&changed, &name("eth7"))).unwrap();
    assert!(!link::get_by_name(&mut inside, "eth7").unwrap().is_up());

    let again = socket.call(link::new_bridge(&name("br0"), None, None, false)).err().unwrap();
    assert!(again.is_existing() && again.to_string().contains("create bridge br0"), "{again}");
    assert!(link::delete(&mut socket, "port0").unwrap());
    assert!(!link::delete(&mut socket, "port0").unwrap());
    assert_eq!(link::find(&mut inside, "eth7").unwrap(), None, "both ends are gone");
}

#[test]
fn addresses_and_routes_are_listed_as_they_were_made() {
    require!(network_namespaces());
    let (mut socket, _inside, bridge) = world();
    let (v4, v6) = ("10.9.0.1/24".parse().unwrap(), "fd00:9::1/64".parse().unwrap());
    socket.call(addr::add(&bridge, v4)).unwrap();
    socket.call(addr::add_undetected(&bridge, v6)).unwrap();
    let listed = addr::list(&mut socket, &bridge, Family::Any).unwrap();
    assert!(
        listed.iter().any(|a| a.net == v4) && listed.iter().any(|a| a.net == v6 && !a.tentative),
        "{listed:?}"
    );

    let made = |dst: &str, gateway: &str| Route {
        gateway: Some(ip(gateway)),
        link: Some(bridge.index),
        table: Some(254),
        protocol: 75,
        ..Route::to(dst.parse().unwrap())
    };
    let routes = [
        Route { mtu: Some(1200), advmss: Some(1100), ..made("10.8.0.0/16", "10.9.0.2") },
        Route { priority: Some(7), source: Some(ip("10.9.0.1")), ..made("0.0.0.0/0", "10.9.0.2") },
        Route { onlink: true, ..made("10.7.0.0/16", "192.0.2.9") },
        Route { table: Some(1000), ..made("10.6.0.0/16", "10.9.0.3") },
        Route { priority: Some(1024), ..made("fd00:8::/64", "fd00:9::2") },
        Route { priority: Some(1024), ..made("::/0", "fd00:9::2") },
    ];
    for wanted in &routes {
        socket.call(route::add(wanted)).unwrap();
        assert!(socket.call(route::add(wanted)).err().unwrap().is_existing(), "{wanted:?}");
        socket.call(route::replace(wanted)).unwrap();
        let listed = route::list(&mut socket, Family::of(wanted.dst.ip())).unwrap();
        assert!(listed.contains(wanted), "{wanted:?} is not among {listed:?}");
    }
    assert_eq!(route::link_towards(&mut socket, ip("10.8.1.1")).unwrap(), Some(bridge.index));
    let mixed = socket.call(route::add(&made("10.5.0.0/16", "fd00:9::2"))).err().unwrap();
    assert!(mixed.to_string().contains("add route 10.5.0.0/16 via fd00:9::2"), "{mixed}");
    for wanted in &routes {
        socket.call(route::remove(wanted)).unwrap();
    }
    socket.call(addr::remove(&bridge, v4)).unwrap();
    socket.call(addr::remove(&bridge, v6)).unwrap();
    let left = addr::list(&mut socket, &bridge, Family::Any).unwrap();
    assert!(!left.iter().any(|a| a.net == v4 || a.net == v6), "{left:?}");
}

#[test]
fn a_tunnel_has_its_properties_neighbours_and_forwarding_entries() {
    require!(network_namespaces());
    let (mut socket, _inside, bridge) = world();
    for (device, local, group_policy) in [("vx4", "10.9.0.1", false), ("vx6", "fd00:9::1", true)] {
        let tunnel = Tunnel {
            vni: 7,
            port: 8472,
            local: Some(ip(local)),
            underlay: Some(bridge.index),
            learning: false,
            group_policy,
        };
        socket.call(vxlan::create(&name(device), &tunnel, MAC, 1300)).unwrap();
        let found = vxlan::find(&mut socket, device).unwrap().unwrap();
        assert_eq!((found.tunnel, found.link.mac, found.link.mtu), (tunnel, Some(MAC), 1300));
        assert!(!found.link.is_up());
        let index = found.link.index;
        socket.call(link::set_up(&found.link)).unwrap();
        entries(&mut socket, index, ip(local));
        assert!(link::delete(&mut socket, device).unwrap());
    }
    assert_eq!(vxlan::list(&mut socket).unwrap(), []);
    assert_eq!(vxlan::find(&mut socket, "br0").unwrap(), None, "another kind of link");
}

fn entries(socket: &mut Socket, device: IfIndex, remote: IpAddr) {
    for neighbour in [ip("10.6.0.0"), ip("fd00:6::")] {
        socket.call(neigh::set(device, neighbour, FAR_MAC)).unwrap();
        let expected = neigh::Entry { addr: neighbour, mac: FAR_MAC, permanent: true };
        assert!(neigh::list(socket, device).unwrap().contains(&expected));
        socket.call(neigh::remove(device, neighbour)).unwrap();
    }
    let expected = neigh::Entry { addr: remote, mac: FAR_MAC, permanent: true };
    socket.call(neigh::set_forwarding(device, FAR_MAC, remote)).unwrap();
    assert!(neigh::list_forwarding(socket, device).unwrap().contains(&expected));
    socket.call(neigh::remove_forwarding(device, FAR_MAC, remote)).unwrap();
    assert!(!neigh::list_forwarding(socket, device).unwrap().contains(&expected));
}

#[test]
fn whoever_listens_for_addresses_hears_of_them_alone() {
    require!(network_namespaces());
    let here = NetNs::anonymous().unwrap();
    let mut socket = here.run(Socket::route).unwrap();
    let mut monitor = here.run(Monitor::addresses).unwrap();
    let mut heard = || {
        let mut changes = vec![];
        monitor.drain(|change| changes.push(change)).unwrap();
        changes
    };
    socket.call(link::new_bridge(&name("br0"), Some(MAC), Some(1400), false)).unwrap();
    let bridge = link::get_by_name(&mut socket, "br0").unwrap();
    assert_eq!(heard(), [], "a link is no address");
    socket.call(addr::add(&bridge, "192.0.2.1/24".parse().unwrap())).unwrap();
    assert_eq!(heard(), [Change::Address(bridge.index)]);
}
