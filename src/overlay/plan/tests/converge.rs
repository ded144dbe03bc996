//! Full reconciles converge to the desired state from any state.

use keelson_netkit::route::Route;

use super::*;
use crate::plan::host_setup::RouteVia;

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
    assert!(observed.routes.iter().all(|r| r.onlink && r.gateway == Some(r.dst.ip())));
}

/// A change that another program made in the kernel.
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
    assert!(
        matches!(actions[..2], [KernelAction::RemoveRoute(_), KernelAction::RemoveRoute(_)]),
        "{actions:?}"
    );
}

#[test]
fn a_peer_that_moves_is_forwarded_to_its_new_place_without_a_gap() {
    let mut observed = empty();
    converge(&wanted(VXLAN, &[2]), &mut observed);
    let mut moved = wanted(VXLAN, &[2]);
    moved.devices[0].forwarding[0].1 = "192.0.2.77".parse().unwrap();
    let actions = plan(&moved, &observed);
    assert!(matches!(actions[..], [KernelAction::SetForwarding { .. }]), "{actions:?}");
}

#[test]
fn direct_routing_goes_without_a_tunnel_only_on_the_same_link() {
    let direct = wanted(DIRECT, &[2]);
    assert!(direct.routes.iter().all(|r| matches!(r.via, RouteVia::Underlay { .. })), "{:?}", direct.routes);
    let mut far = peer(3);
    far.v4.as_mut().unwrap().public = "198.51.100.3".parse().unwrap();
    let desired = desired(&setup(DIRECT), [far].into_iter(), &FallbackPeers::new());
    assert!(matches!(desired.routes[0].via, RouteVia::Device { .. }));
}

#[test]
fn host_gw_names_the_peer_that_is_behind_a_router_and_serves_the_others() {
    let setup = setup(HOST_GW);
    let mut far = peer(3);
    far.v4.as_mut().unwrap().public = "198.51.100.3".parse().unwrap();
    let why = setup.carrier(&far.v4.unwrap(), false).unwrap_err();
    assert!(why.contains("198.51.100.3"), "{why}");
    let desired = desired(&setup, [peer(2), far].into_iter(), &FallbackPeers::new());
    assert_eq!(desired.routes.len(), 3, "{:?}", desired.routes);
    let mut observed = empty();
    converge(&desired, &mut observed);
    assert!(observed.routes.iter().all(|r| r.link == Some(IfIndex(2)) && !r.onlink));
}

#[test]
fn a_change_of_backend_leads_the_routes_over_and_then_removes_the_old_device() {
    let mut observed = empty();
    converge(&wanted(VXLAN, &[2]), &mut observed);
    let mut next = wanted(HOST_GW, &[2]);
    next.retired = vec!["flannel.1".try_into().unwrap(), "flannel-v6.1".try_into().unwrap()];
    let taken = converge(&next, &mut observed);
    assert!(matches!(taken.last(), Some(KernelAction::DeleteLink { .. })), "{taken:?}");
    assert!(observed.devices.is_empty() && observed.routes.len() == 2, "{observed:?}");
}

#[test]
fn a_peer_that_fell_back_to_udp_keeps_its_tunnel_entries_so_that_the_way_back_is_noticed() {
    let fallback_peers = FallbackPeers::from([("n2".into(), true)]);
    let desired = desired(&setup(FALLBACK), [peer(2), peer(3)].into_iter(), &fallback_peers);
    let over = |dst: &str| desired.routes.iter().find(|r| r.dst == net(dst)).map(|r| r.via);
    let tun = RouteVia::Device { role: DeviceRole::Tun, gateway: None };
    assert_eq!(over("10.244.2.0/24"), Some(tun));
    assert_ne!(over("fd00:0:0:2::/64"), Some(tun), "the other family stays");
    assert_ne!(over("10.244.3.0/24"), Some(tun));
    assert_eq!(desired.devices[0].forwarding.len(), 2);
}
