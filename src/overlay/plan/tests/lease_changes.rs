//! Applying lease changes leads to the same state as a full reconcile, and its own notifications do not cause one.

use std::collections::BTreeMap;
use std::sync::Arc;

use keelson_netkit::monitor::{Change as KernelChange, NeighbourChange};
use keelson_netkit::route::Route;
use proptest::prelude::*;

use super::*;
use crate::lease::{LeaseTable, LeaseUpdate, Requirements};

/// A host whose kernel matches its leases.
struct Host {
    setup: HostSetup,
    leases: LeaseTable,
    fallback_peers: FallbackPeers,
    observed: Observed,
    links: KernelLinks,
}

impl Host {
    fn new(json: &str) -> Self {
        let setup = setup(json);
        let mut leases = LeaseTable::default();
        leases.set_requirements(&Requirements {
            networks: setup.networks.clone(),
            own: setup.subnets.clone(),
            addresses: vec![],
            macs: vec![],
            backend: setup.backend.name().into(),
            vni: None,
        });
        let mut observed = empty();
        let nobody = desired(&setup, std::iter::empty(), &FallbackPeers::new());
        if nobody.devices.iter().any(|d| d.role == DeviceRole::Tun) {
            observed.devices.push(tun());
        }
        converge(&nobody, &mut observed);
        let links = KernelLinks::resolve(&setup, nobody.devices.iter().map(|d| d.role), &observed).unwrap();
        Host { setup, leases, fallback_peers: FallbackPeers::new(), observed, links }
    }

    fn apply(&mut self, holder: &str, lease: Option<Lease>) -> Vec<KernelAction> {
        let update = LeaseUpdate::Changes(BTreeMap::from([(Arc::from(holder), lease.map(Ok))]));
        let fallback_peers = &self.fallback_peers;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for change in self.leases.apply(update) {
            before.extend(change.before.iter().flat_map(|p| self.setup.paths(p, fallback_peers)));
            after.extend(change.after.iter().flat_map(|p| self.setup.paths(p, fallback_peers)));
        }
        let actions = {
            let is_used = |mac, v4| self.leases.by_mac(mac, v4).is_some();
            plan_lease_changes(&self.setup, &self.links, &before, &after, is_used).unwrap()
        };
        carry_out(&mut self.observed, &actions);
        actions
    }

    fn wanted(&self) -> Desired {
        desired(&self.setup, self.leases.peers(), &self.fallback_peers)
    }

    fn needs_reconcile(&self, change: KernelChange) -> bool {
        let filter = ChangeFilter {
            setup: &self.setup,
            links: &self.links,
            leases: &self.leases,
            fallback_peers: &self.fallback_peers,
            far: &["203.0.113.1".parse().unwrap()],
            tables: &["ours"],
            port: 7,
        };
        filter.needs_reconcile(&change)
    }
}

fn tun() -> ObservedDevice {
    ObservedDevice {
        name: TUN_NAME.into(),
        index: IfIndex(9),
        kind: Some("tun".into()),
        tunnel: None,
        mac: None,
        mtu: 1500,
        up: true,
        checksum_offload: None,
        addresses: vec![],
        neighbours: vec![],
        forwarding: vec![],
    }
}

/// The kernel's notification of an action.
fn echo(action: &KernelAction) -> Option<KernelChange> {
    let neighbour = |link, forwarding, addr, mac, gone: bool| {
        Some(KernelChange::Neighbour(NeighbourChange {
            link,
            forwarding,
            addr: Some(addr),
            mac,
            permanent: !gone,
            gone,
        }))
    };
    match action.clone() {
        KernelAction::SetRoute(route) => Some(KernelChange::Route { route, gone: false }),
        KernelAction::RemoveRoute(route) => Some(KernelChange::Route { route, gone: true }),
        KernelAction::SetNeighbour { index, addr, mac, .. } => {
            neighbour(index, false, addr, Some(mac), false)
        }
        KernelAction::RemoveNeighbour { index, addr, .. } => neighbour(index, false, addr, None, true),
        KernelAction::SetForwarding { index, mac, remote, .. } => {
            neighbour(index, true, remote, Some(mac), false)
        }
        KernelAction::RemoveForwarding { index, mac, remote, .. } => {
            neighbour(index, true, remote, Some(mac), true)
        }
        _ => None,
    }
}

proptest! {
    #[test]
    fn after_any_changes_a_full_reconcile_finds_nothing_to_do_and_was_not_requested(
        json in prop::sample::select(vec![VXLAN, HOST_GW, DIRECT, FALLBACK, "{}"]),
        steps in prop::collection::vec((2u8..8, 2u8..8, prop::bool::weighted(0.3)), 1..25)
    ) {
        let mut host = Host::new(json);
        for (holder, like, leaves) in steps {
            let name = format!("h{holder}");
            let mut lease = peer(like);
            lease.holder = name.as_str().into();
            lease.backend = host.setup.backend.name().into();
            // Moves to another address while it keeps its subnet; some hosts hold two leases.
            let leased = lease.v4.as_mut().unwrap();
            leased.public = format!("192.0.2.{}", 100 + holder / 2).parse().unwrap();
            leased.vtep.as_mut().unwrap().mac = mac(100 + holder / 2);
            let actions = host.apply(&name, (!leaves).then_some(lease));
            let left = plan(&host.wanted(), &host.observed);
            prop_assert_eq!(left, vec![], "after {:?}", actions);
            for change in actions.iter().filter_map(echo) {
                prop_assert!(!host.needs_reconcile(change.clone()), "its own echo: {:?}", change);
            }
        }
    }
}

#[test]
fn one_peer_among_many_is_a_handful_of_steps() {
    let mut host = Host::new(VXLAN);
    for number in 2..90 {
        let actions = host.apply(&format!("n{number}"), Some(peer(number)));
        assert_eq!(actions.len(), 6, "a neighbour, a forwarding entry and a route in each family");
    }
    assert_eq!(host.apply("n77", None).len(), 6);
    let mut moved = peer(78);
    moved.v4.as_mut().unwrap().public = "192.0.2.250".parse().unwrap();
    let actions = host.apply("n78", Some(moved));
    assert!(actions.iter().all(|a| !a.to_string().starts_with("stop")), "without a gap: {actions:?}");
}

#[test]
fn changes_to_our_entries_need_a_reconcile_and_changes_to_others_do_not() {
    let mut host = Host::new(VXLAN);
    host.apply("n2", Some(peer(2)));
    let tunnel = host.links.devices[0].2;
    let ours = host.links.resolve_route(&host.wanted().routes[0]).unwrap();
    let change = |link, forwarding, addr: &str, mac, permanent, gone| {
        let addr = addr.parse().ok();
        KernelChange::Neighbour(NeighbourChange { link, forwarding, addr, mac: Some(mac), permanent, gone })
    };
    let elsewhere = |dst: &str| Route { link: Some(IfIndex(33)), ..Route::to(net(dst)) };
    let cases = [
        ("our route, as it should be", KernelChange::Route { route: ours.clone(), gone: false }, false),
        ("our route, gone", KernelChange::Route { route: ours.clone(), gone: true }, true),
        (
            "another in its place",
            KernelChange::Route { route: elsewhere("10.244.2.0/24"), gone: false },
            true,
        ),
        ("a pod's", KernelChange::Route { route: elsewhere("10.244.1.7/32"), gone: false }, false),
        ("the default route", KernelChange::Route { route: elsewhere("0.0.0.0/0"), gone: true }, true),
        (
            "one in another table",
            KernelChange::Route { route: Route { table: Some(9), ..ours.clone() }, gone: true },
            false,
        ),
        (
            "one of ours that nobody wants",
            KernelChange::Route {
                route: Route { protocol: ROUTE_PROTOCOL, ..elsewhere("10.244.9.0/24") },
                gone: false,
            },
            true,
        ),
        (
            "a stranger's over our device",
            KernelChange::Route {
                route: Route { link: Some(tunnel), ..Route::to(net("10.244.9.0/24")) },
                gone: false,
            },
            true,
        ),
        ("our neighbour gone", change(tunnel, false, "10.244.2.0", mac(2), true, true), true),
        ("our neighbour changed", change(tunnel, false, "10.244.2.0", mac(9), true, false), true),
        ("a learned neighbour", change(tunnel, false, "10.244.9.9", mac(9), false, false), false),
        (
            "a neighbour on the hosts' interface",
            change(IfIndex(2), false, "192.0.2.2", mac(2), true, true),
            false,
        ),
        ("our forwarding entry gone", change(tunnel, true, "192.0.2.2", mac(2), true, true), true),
        ("our forwarding entry led elsewhere", change(tunnel, true, "192.0.2.9", mac(2), true, false), true),
        ("a strange forwarding entry", change(tunnel, true, "192.0.2.9", mac(9), true, false), true),
        ("our device", KernelChange::Link(tunnel), true),
        ("another device", KernelChange::Link(IfIndex(33)), false),
        ("an address of the hosts' interface", KernelChange::Address(IfIndex(2)), true),
        ("our rules by us", KernelChange::Rules { table: "ours".into(), by: 7 }, false),
        ("our rules by others", KernelChange::Rules { table: "ours".into(), by: 8 }, true),
        ("others' rules", KernelChange::Rules { table: "theirs".into(), by: 8 }, false),
        ("too much at once", KernelChange::Anything, true),
    ];
    for (name, change, reason) in cases {
        assert_eq!(host.needs_reconcile(change), reason, "{name}");
    }
}
