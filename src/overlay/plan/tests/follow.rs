//! What only some leases need comes to the same as a look at everything; and its echo is no reason for one.

use std::collections::BTreeMap;
use std::sync::Arc;

use keelson_netkit::monitor::{Change as Told, NeighbourChange};
use keelson_netkit::route::Route;
use proptest::prelude::*;

use super::*;
use crate::lease::{Measure, News, Roll};

/// A host whose kernel is as its leases say.
struct Host {
    situation: Situation,
    roll: Roll,
    fallen: Fallen,
    observed: Observed,
    ground: Ground,
}

impl Host {
    fn new(json: &str) -> Self {
        let situation = situation(json);
        let mut roll = Roll::default();
        roll.settle(&Measure {
            networks: situation.networks.clone(),
            own: situation.subnets.clone(),
            addresses: vec![],
            macs: vec![],
            backend: situation.backend.name().into(),
            vni: None,
        });
        let mut observed = empty();
        let nobody = desired(&situation, std::iter::empty(), &Fallen::new());
        if nobody.devices.iter().any(|d| d.role == Role::Tun) {
            observed.devices.push(tun());
        }
        converge(&nobody, &mut observed);
        let ground = Ground::of(&situation, nobody.devices.iter().map(|d| d.role), &observed).unwrap();
        Host { situation, roll, fallen: Fallen::new(), observed, ground }
    }

    fn news(&mut self, holder: &str, lease: Option<Lease>) -> Vec<Action> {
        let news = News::Some(BTreeMap::from([(Arc::from(holder), lease.map(Ok))]));
        let fallen = &self.fallen;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for change in self.roll.take(news) {
            before.extend(change.before.iter().flat_map(|p| self.situation.ways(p, fallen)));
            after.extend(change.after.iter().flat_map(|p| self.situation.ways(p, fallen)));
        }
        let actions = {
            let is_used = |mac, v4| self.roll.of_mac(mac, v4).is_some();
            super::super::follow(&self.situation, &self.ground, &before, &after, is_used).unwrap()
        };
        carry_out(&mut self.observed, &actions);
        actions
    }

    fn wanted(&self) -> Desired {
        desired(&self.situation, self.roll.peers(), &self.fallen)
    }

    fn is_touched_by(&self, told: Told) -> bool {
        let claim = Claim {
            situation: &self.situation,
            ground: &self.ground,
            roll: &self.roll,
            fallen: &self.fallen,
            far: &["203.0.113.1".parse().unwrap()],
            tables: &["ours"],
            port: 7,
        };
        claim.is_touched_by(&told)
    }
}

fn tun() -> FoundDevice {
    FoundDevice {
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

/// What the kernel tells of a step.
fn echo(action: &Action) -> Option<Told> {
    let neighbour = |link, forwarding, addr, mac, gone: bool| {
        Some(Told::Neighbour(NeighbourChange {
            link,
            forwarding,
            addr: Some(addr),
            mac,
            permanent: !gone,
            gone,
        }))
    };
    match action.clone() {
        Action::SetRoute(route) => Some(Told::Route { route, gone: false }),
        Action::RemoveRoute(route) => Some(Told::Route { route, gone: true }),
        Action::SetNeighbour { index, addr, mac, .. } => neighbour(index, false, addr, Some(mac), false),
        Action::RemoveNeighbour { index, addr, .. } => neighbour(index, false, addr, None, true),
        Action::SetForwarding { index, mac, remote, .. } => neighbour(index, true, remote, Some(mac), false),
        Action::RemoveForwarding { index, mac, remote, .. } => {
            neighbour(index, true, remote, Some(mac), true)
        }
        _ => None,
    }
}

proptest! {
    #[test]
    fn after_any_changes_a_look_at_everything_finds_nothing_to_do_and_was_not_asked_for(
        json in prop::sample::select(vec![VXLAN, HOST_GW, DIRECT, FALLBACK, "{}"]),
        steps in prop::collection::vec((2u8..8, 2u8..8, prop::bool::weighted(0.3)), 1..25)
    ) {
        let mut host = Host::new(json);
        for (holder, like, leaves) in steps {
            let name = format!("h{holder}");
            let mut lease = peer(like);
            lease.holder = name.as_str().into();
            lease.backend = host.situation.backend.name().into();
            // Moves to another address while it keeps its subnet; some hosts hold two leases.
            let place = lease.v4.as_mut().unwrap();
            place.public = format!("192.0.2.{}", 100 + holder / 2).parse().unwrap();
            place.vtep.as_mut().unwrap().mac = mac(100 + holder / 2);
            let actions = host.news(&name, (!leaves).then_some(lease));
            let left = plan(&host.wanted(), &host.observed);
            prop_assert_eq!(left, vec![], "after {:?}", actions);
            for told in actions.iter().filter_map(echo) {
                prop_assert!(!host.is_touched_by(told.clone()), "its own echo: {:?}", told);
            }
        }
    }
}

#[test]
fn one_peer_among_many_is_a_handful_of_steps() {
    let mut host = Host::new(VXLAN);
    for number in 2..90 {
        let actions = host.news(&format!("n{number}"), Some(peer(number)));
        assert_eq!(actions.len(), 6, "a neighbour, a forwarding entry and a route in each family");
    }
    assert_eq!(host.news("n77", None).len(), 6);
    let mut moved = peer(78);
    moved.v4.as_mut().unwrap().public = "192.0.2.250".parse().unwrap();
    let actions = host.news("n78", Some(moved));
    assert!(actions.iter().all(|a| !a.to_string().starts_with("stop")), "without a gap: {actions:?}");
}

#[test]
fn what_others_do_to_ours_is_a_reason_to_look_and_what_they_do_to_theirs_is_not() {
    let mut host = Host::new(VXLAN);
    host.news("n2", Some(peer(2)));
    let tunnel = host.ground.devices[0].2;
    let ours = host.ground.concrete(&host.wanted().routes[0]).unwrap();
    let told = |link, forwarding, addr: &str, mac, permanent, gone| {
        let addr = addr.parse().ok();
        Told::Neighbour(NeighbourChange { link, forwarding, addr, mac: Some(mac), permanent, gone })
    };
    let elsewhere = |dst: &str| Route { link: Some(IfIndex(33)), ..Route::to(net(dst)) };
    let cases = [
        ("our route, as it should be", Told::Route { route: ours.clone(), gone: false }, false),
        ("our route, gone", Told::Route { route: ours.clone(), gone: true }, true),
        ("another in its place", Told::Route { route: elsewhere("10.244.2.0/24"), gone: false }, true),
        ("a pod's", Told::Route { route: elsewhere("10.244.1.7/32"), gone: false }, false),
        ("the default route", Told::Route { route: elsewhere("0.0.0.0/0"), gone: true }, true),
        (
            "one in another table",
            Told::Route { route: Route { table: Some(9), ..ours.clone() }, gone: true },
            false,
        ),
        (
            "one of ours that nobody wants",
            Told::Route {
                route: Route { protocol: ROUTE_PROTOCOL, ..elsewhere("10.244.9.0/24") },
                gone: false,
            },
            true,
        ),
        (
            "a stranger's over our device",
            Told::Route {
                route: Route { link: Some(tunnel), ..Route::to(net("10.244.9.0/24")) },
                gone: false,
            },
            true,
        ),
        ("our neighbour gone", told(tunnel, false, "10.244.2.0", mac(2), true, true), true),
        ("our neighbour changed", told(tunnel, false, "10.244.2.0", mac(9), true, false), true),
        ("a learned neighbour", told(tunnel, false, "10.244.9.9", mac(9), false, false), false),
        (
            "a neighbour on the hosts' interface",
            told(IfIndex(2), false, "192.0.2.2", mac(2), true, true),
            false,
        ),
        ("our forwarding entry gone", told(tunnel, true, "192.0.2.2", mac(2), true, true), true),
        ("our forwarding entry led elsewhere", told(tunnel, true, "192.0.2.9", mac(2), true, false), true),
        ("a strange forwarding entry", told(tunnel, true, "192.0.2.9", mac(9), true, false), true),
        ("our device", Told::Link(tunnel), true),
        ("another device", Told::Link(IfIndex(33)), false),
        ("an address of the hosts' interface", Told::Address(IfIndex(2)), true),
        ("our rules by us", Told::Rules { table: "ours".into(), by: 7 }, false),
        ("our rules by others", Told::Rules { table: "ours".into(), by: 8 }, true),
        ("others' rules", Told::Rules { table: "theirs".into(), by: 8 }, false),
        ("too much at once", Told::Anything, true),
    ];
    for (name, told, reason) in cases {
        assert_eq!(host.is_touched_by(told), reason, "{name}");
    }
}
