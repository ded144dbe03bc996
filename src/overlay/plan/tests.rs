use std::collections::BTreeSet;

use keelson_netkit::neigh::Entry;
use keelson_netkit::route::Route;
use keelson_netkit::{IfIndex, IpNet, Mac};

use super::*;
use crate::config::{Backend, NetConf};
use crate::lease::{Lease, Place, Vtep};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn backend(json: &str) -> Backend {
    NetConf::parse(&format!(r#"{{"Network": "10.244.0.0/16", "Backend": {json}}}"#), None).unwrap().backend
}

fn mac(last: u8) -> Mac {
    Mac([0x6a, 0, 0, 0, 0, last])
}

fn peer(number: u8) -> Lease {
    let place = |subnet: String, public: String| Place {
        subnet: net(&subnet),
        public: public.parse().unwrap(),
        vtep: Some(Vtep { vni: 1, mac: mac(number) }),
    };
    Lease {
        holder: format!("n{number}"),
        backend: "vxlan".into(),
        v4: Some(place(format!("10.244.{number}.0/24"), format!("192.0.2.{number}"))),
        v6: Some(place(format!("fd00:0:0:{number}::/64"), format!("2001:db8::{number}"))),
    }
}

fn situation<'a>(backend: &'a Backend, fallen_back: &'a BTreeSet<String>) -> Situation<'a> {
    Situation {
        backend,
        networks: vec![net("10.244.0.0/16"), net("fd00::/56")],
        subnets: vec![net("10.244.1.0/24"), net("fd00:0:0:1::/64")],
        underlay: IfIndex(2),
        underlay_mtu: 1500,
        underlay_nets: vec![net("192.0.2.1/24"), net("2001:db8::1/64")],
        macs: (mac(1), mac(101)),
        local4: "192.0.2.1".parse().ok(),
        local6: "2001:db8::1".parse().ok(),
        checksum_offload: true,
        fallen_back,
    }
}

fn wanted(json: &str, peers: &[u8]) -> Desired {
    let (backend, none) = (backend(json), BTreeSet::new());
    desired(&situation(&backend, &none), &peers.iter().map(|n| peer(*n)).collect::<Vec<_>>()).0
}

/// A kernel in small: carries actions out on what was observed, so that plans can be followed to their end.
fn carry_out(observed: &mut Observed, actions: &[Action]) {
    for action in actions {
        let free = (10..).find(|i| observed.devices.iter().all(|d| d.index != IfIndex(*i))).unwrap();
        let device = |observed: &mut Observed, name: &keelson_netkit::IfName| -> usize {
            observed.devices.iter().position(|d| d.name == name.as_str()).unwrap()
        };
        match action.clone() {
            Action::CreateVxlan { name, tunnel, mac, mtu } => {
                assert!(observed.device(name.as_str()).is_none(), "{name} is there already");
                observed.devices.push(FoundDevice {
                    name: name.to_string(),
                    index: IfIndex(free),
                    kind: Some("vxlan".into()),
                    tunnel: Some(tunnel),
                    mac: Some(mac),
                    mtu,
                    up: false,
                    checksum_offload: Some(true),
                    addresses: vec![],
                    neighbours: vec![],
                    forwarding: vec![],
                });
            }
            Action::DeleteLink { name } => {
                let index = observed.device(&name).map(|d| d.index);
                observed.devices.retain(|d| d.name != name);
                observed.routes.retain(|r| r.link != index);
            }
            Action::Rename { from, to } => {
                let found = observed.devices.iter_mut().find(|d| d.name == from).unwrap();
                found.name = to.to_string();
            }
            Action::SetMac { device: name, mac } => {
                let at = device(observed, &name);
                observed.devices[at].mac = Some(mac);
            }
            Action::SetMtu { device: name, mtu } => {
                let at = device(observed, &name);
                observed.devices[at].mtu = mtu;
            }
            Action::SetUp { device: name } => {
                let at = device(observed, &name);
                observed.devices[at].up = true;
            }
            Action::StopChecksumOffload { device: name } => {
                let at = device(observed, &name);
                observed.devices[at].checksum_offload = Some(false);
            }
            Action::AddAddress { device: name, net } => {
                let at = device(observed, &name);
                observed.devices[at].addresses.push(net);
            }
            Action::RemoveAddress { device: name, net } => {
                let at = device(observed, &name);
                observed.devices[at].addresses.retain(|n| *n != net);
            }
            Action::SetNeighbour { device: name, addr, mac, .. } => {
                let at = device(observed, &name);
                let list = &mut observed.devices[at].neighbours;
                list.retain(|e| e.addr != addr);
                list.push(Entry { addr, mac, permanent: true });
            }
            Action::RemoveNeighbour { device: name, addr, .. } => {
                let at = device(observed, &name);
                observed.devices[at].neighbours.retain(|e| e.addr != addr);
            }
            Action::SetForwarding { device: name, mac, remote, .. } => {
                let at = device(observed, &name);
                let list = &mut observed.devices[at].forwarding;
                list.retain(|e| e.mac != mac);
                list.push(Entry { addr: remote, mac, permanent: true });
            }
            Action::RemoveForwarding { device: name, mac, remote, .. } => {
                let at = device(observed, &name);
                observed.devices[at].forwarding.retain(|e| (e.mac, e.addr) != (mac, remote));
            }
            Action::SetRoute(route) => {
                observed.routes.retain(|r| r.dst != route.dst);
                observed.routes.push(route);
            }
            Action::RemoveRoute(route) => observed.routes.retain(|r| r != &route),
        }
    }
}

fn converge(desired: &Desired, observed: &mut Observed) -> Vec<Action> {
    let mut taken = Vec::new();
    for _ in 0..6 {
        let actions = plan(desired, observed);
        if actions.is_empty() {
            return taken;
        }
        carry_out(observed, &actions);
        taken.extend(actions);
    }
    panic!("no end: {:?}", plan(desired, observed));
}

fn empty() -> Observed {
    Observed { underlay: Some(IfIndex(2)), ..Observed::default() }
}

const VXLAN: &str = r#"{"Type": "vxlan"}"#;

#[test]
fn from_nothing_every_peer_gets_a_neighbour_a_forwarding_entry_and_a_route_in_each_family() {
    let mut observed = empty();
    converge(&wanted(VXLAN, &[2, 3]), &mut observed);
    let names: Vec<&str> = observed.devices.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["flannel.1", "flannel-v6.1"]);
    for device in &observed.devices {
        assert_eq!(
            (device.neighbours.len(), device.forwarding.len(), device.mtu),
            (2, 2, 1430),
            "{}",
            device.name
        );
    }
    assert_eq!(observed.devices[0].addresses, [net("10.244.1.0/32")]);
    assert_eq!(observed.routes.len(), 4);
    assert!(observed.routes.iter().all(|r| r.onlink && r.gateway == Some(r.dst.addr)));
}

/// What somebody did to the kernel behind our back.
type Damage = fn(&mut Observed);

#[test]
fn whatever_others_break_is_repaired_and_nothing_else_is_touched() {
    let desired = wanted(VXLAN, &[2, 3]);
    let mut whole = empty();
    converge(&desired, &mut whole);
    let cases: [(&str, Damage); 12] = [
        ("the device deleted", |o| {
            let index = o.devices[0].index;
            o.devices.remove(0);
            o.routes.retain(|r| r.link != Some(index));
        }),
        ("the device renamed", |o| o.devices[0].name = "other0".into()),
        ("the MAC changed", |o| o.devices[0].mac = Some(mac(99))),
        ("the MTU changed", |o| o.devices[0].mtu = 9000),
        ("set down", |o| {
            o.devices[0].up = false;
            let index = o.devices[0].index;
            o.routes.retain(|r| r.link != Some(index));
        }),
        ("its address gone", |o| o.devices[0].addresses.clear()),
        ("a strange address on it", |o| o.devices[0].addresses.push(net("10.9.9.9/24"))),
        ("a route deleted", |o| o.routes.truncate(o.routes.len() - 1)),
        ("a route led elsewhere", |o| o.routes[0].gateway = "192.0.2.250".parse().ok()),
        ("the forwarding entries flushed", |o| o.devices[0].forwarding.clear()),
        ("a neighbour changed", |o| o.devices[0].neighbours[0].mac = mac(98)),
        ("another network number on the device", |o| o.devices[0].tunnel.as_mut().unwrap().vni = 5),
    ];
    for (name, damage) in cases {
        let mut observed = whole.clone();
        damage(&mut observed);
        let taken = converge(&desired, &mut observed);
        assert!(!taken.is_empty(), "{name}: not noticed");
        let sorted = |o: &Observed| {
            let mut routes: Vec<String> =
                o.routes.iter().map(|r| format!("{} {:?}", r.dst, r.gateway)).collect();
            routes.sort();
            let mut devices: Vec<String> = o
                .devices
                .iter()
                .map(|d| {
                    let mut lists = (d.neighbours.clone(), d.forwarding.clone());
                    lists.0.sort_by_key(|e| e.mac.0);
                    lists.1.sort_by_key(|e| e.mac.0);
                    format!("{} {:?} {} {} {:?} {lists:?}", d.name, d.mac, d.mtu, d.up, d.addresses)
                })
                .collect();
            devices.sort();
            (devices, routes)
        };
        assert_eq!(sorted(&observed), sorted(&whole), "{name}");
    }
}

#[test]
fn link_local_addresses_learned_neighbours_and_other_peoples_routes_stay() {
    let desired = wanted(VXLAN, &[2]);
    let mut observed = empty();
    converge(&desired, &mut observed);
    observed.devices[0].addresses.push(net("fe80::1/64"));
    observed.devices[0].neighbours.push(Entry {
        addr: "10.244.9.9".parse().unwrap(),
        mac: mac(9),
        permanent: false,
    });
    observed.routes.push(Route {
        link: Some(IfIndex(2)),
        gateway: "192.0.2.254".parse().ok(),
        ..Route::to(net("10.244.77.0/24"))
    });
    observed.routes.push(Route {
        link: Some(IfIndex(9)),
        protocol: KERNEL_PROTOCOL,
        ..Route::to(net("10.244.1.0/24"))
    });
    assert_eq!(plan(&desired, &observed), []);
}

#[test]
fn a_peer_that_leaves_takes_its_entries_along_routes_first() {
    let mut observed = empty();
    converge(&wanted(VXLAN, &[2, 3]), &mut observed);
    let actions = plan(&wanted(VXLAN, &[2]), &observed);
    assert_eq!(actions.len(), 6, "{actions:?}");
    assert!(matches!(actions[..2], [Action::RemoveRoute(_), Action::RemoveRoute(_)]), "{actions:?}");
}

#[test]
fn a_peer_that_moves_is_forwarded_to_its_new_place_without_a_gap() {
    let mut observed = empty();
    converge(&wanted(VXLAN, &[2]), &mut observed);
    let mut moved = wanted(VXLAN, &[2]);
    moved.devices[0].forwarding[0].1 = "192.0.2.77".parse().unwrap();
    let actions = plan(&moved, &observed);
    assert!(matches!(actions[..], [Action::SetForwarding { .. }]), "{actions:?}");
}

#[test]
fn direct_routing_goes_without_a_tunnel_only_on_the_same_link() {
    let direct = wanted(r#"{"Type": "vxlan", "DirectRouting": true}"#, &[2]);
    assert!(direct.routes.iter().all(|r| matches!(r.via, Via::Underlay { .. })), "{:?}", direct.routes);
    let (backend, none) = (backend(r#"{"Type": "vxlan", "DirectRouting": true}"#), BTreeSet::new());
    let mut far = peer(3);
    far.v4.as_mut().unwrap().public = "198.51.100.3".parse().unwrap();
    let (desired, _) = desired(&situation(&backend, &none), &[far]);
    assert!(matches!(desired.routes[0].via, Via::Device { .. }));
}

#[test]
fn host_gw_names_the_peer_that_is_behind_a_router_and_serves_the_others() {
    let (backend, none) = (backend(r#"{"Type": "host-gw"}"#), BTreeSet::new());
    let mut far = peer(3);
    far.v4.as_mut().unwrap().public = "198.51.100.3".parse().unwrap();
    let (desired, unreachable) = desired(&situation(&backend, &none), &[peer(2), far]);
    assert_eq!(desired.routes.len(), 3, "{:?}", desired.routes);
    assert_eq!(unreachable.len(), 1);
    assert!(unreachable[0].why.contains("198.51.100.3"), "{unreachable:?}");
    let mut observed = empty();
    converge(&desired, &mut observed);
    assert!(observed.routes.iter().all(|r| r.link == Some(IfIndex(2)) && !r.onlink));
}

#[test]
fn a_change_of_backend_leads_the_routes_over_and_then_removes_the_old_device() {
    let mut observed = empty();
    converge(&wanted(VXLAN, &[2]), &mut observed);
    let mut next = wanted(r#"{"Type": "host-gw"}"#, &[2]);
    next.retired = vec!["flannel.1".try_into().unwrap(), "flannel-v6.1".try_into().unwrap()];
    let taken = converge(&next, &mut observed);
    assert!(matches!(taken.last(), Some(Action::DeleteLink { .. })), "{taken:?}");
    assert!(observed.devices.is_empty() && observed.routes.len() == 2, "{observed:?}");
}

#[test]
fn a_peer_that_fell_back_to_udp_keeps_its_tunnel_entries_so_that_the_way_back_is_noticed() {
    let backend = backend(r#"{"Type": "vxlan", "Fallback": "udp"}"#);
    let fallen = BTreeSet::from(["n2".to_owned()]);
    let (desired, _) = desired(&situation(&backend, &fallen), &[peer(2), peer(3)]);
    let over = |dst: &str| desired.routes.iter().find(|r| r.dst == net(dst)).map(|r| r.via.clone());
    let tun = Via::Device { name: TUN_NAME.try_into().unwrap(), gateway: None };
    assert_eq!(over("10.244.2.0/24"), Some(tun.clone()));
    assert_ne!(over("10.244.3.0/24"), Some(tun));
    assert_eq!(desired.devices[0].forwarding.len(), 2);
}
