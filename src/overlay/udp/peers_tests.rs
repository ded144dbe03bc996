use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;

fn endpoint(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], 8285))
}

fn peer(host: u8, subnets: &[u8]) -> Peer {
    let subnets =
        subnets.iter().map(|n| keelson_kit::cidr::with_length(IpAddr::from([10, 1, *n, 0]), 24)).collect();
    Peer { endpoint: endpoint(host), subnets }
}

#[derive(Debug, Clone)]
enum Step {
    Set(u8, Vec<u8>),
    Remove(u8),
    Replace(Vec<(u8, Vec<u8>)>),
}

fn step() -> impl Strategy<Value = Step> {
    let subnets = || prop::collection::vec(0u8..12, 0..3);
    prop_oneof![
        6 => (0u8..6, subnets()).prop_map(|(host, nets)| Step::Set(host, nets)),
        3 => (0u8..6).prop_map(Step::Remove),
        1 => prop::collection::vec((0u8..6, subnets()), 0..5).prop_map(Step::Replace),
    ]
}

/// A reference model on plain maps.
#[derive(Default)]
struct Model {
    holders: BTreeMap<u8, u8>,
    hosts: BTreeMap<u8, ()>,
}

impl Model {
    fn set(&mut self, host: u8, nets: &[u8]) {
        self.remove(host);
        self.hosts.insert(host, ());
        for net in nets {
            self.holders.entry(*net).or_insert(host);
        }
    }

    fn remove(&mut self, host: u8) {
        self.hosts.remove(&host);
        self.holders.retain(|_, holder| *holder != host);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn both_copies_agree_after_any_changes(steps in prop::collection::vec(step(), 0..40)) {
        let peers = Peers::default();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Set(host, nets) => {
                    peers.set(peer(host, &nets));
                    model.set(host, &nets);
                }
                Step::Remove(host) => {
                    prop_assert_eq!(peers.remove(endpoint(host)), model.hosts.contains_key(&host));
                    model.remove(host);
                }
                Step::Replace(list) => {
                    peers.replace(list.iter().map(|(host, nets)| peer(*host, nets)).collect());
                    model = Model::default();
                    for (host, nets) in &list {
                        model.set(*host, nets);
                    }
                }
            }
            let table = peers.load();
            prop_assert_eq!(peers.load().endpoints.len(), model.hosts.len());
            for net in 0..12 {
                let found = table.find(IpAddr::from([10, 1, net, 7])).map(|n| table.entry(n).unwrap().endpoint);
                prop_assert_eq!(found, model.holders.get(&net).map(|host| endpoint(*host)));
            }
            for host in 0..6 {
                prop_assert_eq!(table.find_endpoint(endpoint(host)).is_some(), model.hosts.contains_key(&host));
            }
        }
    }
}

#[test]
fn a_claimed_subnet_stays_with_its_holder_and_the_conflict_is_returned() {
    let peers = Peers::default();
    assert_eq!(peers.set(peer(1, &[7, 7])), []);
    let conflicts = peers.set(peer(2, &[7, 8]));
    assert_eq!(conflicts.len(), 1);
    assert_eq!((conflicts[0].holder, conflicts[0].refused), (endpoint(1), endpoint(2)));
}

#[test]
fn a_peer_keeps_its_path_mtu_when_its_lease_changes() {
    let peers = Peers::default();
    peers.set(peer(1, &[7]));
    let state = |peers: &Peers| {
        let table = peers.load();
        Arc::clone(&table.entry(table.find_endpoint(endpoint(1)).unwrap()).unwrap().state)
    };
    state(&peers).learn_path_mtu(1300, 0);
    peers.set(peer(1, &[8]));
    peers.replace(vec![peer(1, &[9])]);
    assert_eq!(state(&peers).path_mtu(0), Some(1300));
}

#[test]
fn a_path_mtu_is_forgotten_after_ten_minutes() {
    let state = PeerState::default();
    state.learn_path_mtu(1300, 5);
    assert_eq!(state.path_mtu(605), Some(1300));
    assert_eq!(state.path_mtu(606), None);
}

/// Readers never see a table in which a peer holds half of its lease.
#[test]
fn readers_see_whole_changes_only() {
    let peers = Peers::default();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let table = peers.load();
                    let (a, b) = (table.find([10, 1, 1, 1].into()), table.find([10, 1, 2, 1].into()));
                    assert_eq!(a.is_some(), b.is_some());
                }
            });
        }
        for _ in 0..2000 {
            peers.set(peer(1, &[1, 2]));
            peers.set(peer(3, &[3]));
            peers.remove(endpoint(1));
        }
        done.store(true, Ordering::Relaxed);
    });
}
