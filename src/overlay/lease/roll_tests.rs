use super::*;
use crate::lease::Vtep;

fn lease(holder: &str, subnet: &str, public: &str) -> Lease {
    // One that no other lease has, from the last number of the address.
    let last = public.rsplit('.').next().and_then(|n| n.parse().ok()).unwrap();
    let vtep = Some(Vtep { vni: 1, mac: Mac([0x6a, 0, 0, 0, 0, last]) });
    let place = Place { subnet: subnet.parse().unwrap(), public: public.parse().unwrap(), vtep };
    Lease { holder: holder.into(), backend: "vxlan".into(), v4: Some(place), v6: None }
}

fn measure() -> Measure {
    Measure {
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        own: vec!["10.244.1.0/24".parse().unwrap()],
        addresses: vec!["192.0.2.1".parse().unwrap()],
        macs: vec![Mac([0x6a, 0, 0, 0, 0, 1])],
        backend: "vxlan".into(),
        vni: Some(1),
    }
}

fn roll(leases: &[Lease]) -> Roll {
    let mut roll = Roll::default();
    roll.settle(&measure());
    roll.take(whole(leases));
    roll
}

fn whole(leases: &[Lease]) -> News {
    News::Whole(leases.iter().map(|l| (l.holder.clone(), Ok(l.clone()))).collect())
}

fn one(lease: &Lease) -> News {
    News::Some(BTreeMap::from([(lease.holder.clone(), Some(Ok(lease.clone())))]))
}

fn gone(holder: &str) -> News {
    News::Some(BTreeMap::from([(Arc::from(holder), None)]))
}

fn peers(roll: &Roll) -> Vec<Lease> {
    roll.peers().collect()
}

#[test]
fn a_newcomer_takes_nothing_from_a_host_that_is_served_and_gets_it_when_that_one_leaves() {
    let (old, new) = (lease("old", "10.244.7.0/24", "192.0.2.7"), lease("new", "10.244.7.0/24", "192.0.2.8"));
    let mut roll = roll(std::slice::from_ref(&old));
    assert_eq!(roll.take(whole(&[new.clone(), old.clone()])), []);
    assert_eq!(peers(&roll), std::slice::from_ref(&old));
    let told = roll.fresh_complaints();
    assert!(told[0].starts_with("new is left out"), "{told:?}");
    let changes = roll.take(gone("old"));
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!(peers(&roll), [new]);
    assert!(roll.refused() == 0 && roll.fresh_complaints().is_empty());
}

#[test]
fn one_bad_lease_costs_the_others_nothing() {
    let good = lease("good", "10.244.9.0/24", "192.0.2.9");
    let changed = |change: fn(&mut Lease)| {
        let mut lease = lease("bad", "10.244.8.0/24", "192.0.2.8");
        change(&mut lease);
        lease
    };
    for (name, bad, words) in [
        ("outside", lease("bad", "10.9.0.0/24", "192.0.2.8"), "not within the network"),
        ("the whole network", lease("bad", "10.244.0.0/16", "192.0.2.8"), "not within the network"),
        ("our subnet", lease("bad", "10.244.1.0/24", "192.0.2.8"), "two hosts with one subnet"),
        ("around our subnet", lease("bad", "10.244.0.0/20", "192.0.2.8"), "this host's own"),
        ("our address", lease("bad", "10.244.8.0/24", "192.0.2.1"), "cannot share"),
        ("an address among the pods", lease("bad", "10.244.8.0/24", "10.244.8.1"), "pod network"),
        ("another backend", changed(|l| l.backend = "udp".into()), "same backend"),
        ("another network", changed(|l| l.v4.as_mut().unwrap().vtep.as_mut().unwrap().vni = 2), "network 2"),
        ("no tunnel end", changed(|l| l.v4.as_mut().unwrap().vtep = None), "no VtepMAC"),
        (
            "another's tunnel end",
            changed(|l| l.v4.as_mut().unwrap().vtep.as_mut().unwrap().mac.0[5] = 9),
            "is that of good",
        ),
        (
            "our tunnel end",
            changed(|l| l.v4.as_mut().unwrap().vtep.as_mut().unwrap().mac.0[5] = 1),
            "is that of this host",
        ),
    ] {
        let mut roll = roll(std::slice::from_ref(&good));
        roll.take(one(&bad));
        assert_eq!(peers(&roll), std::slice::from_ref(&good), "{name}");
        let told: Vec<&str> = roll.complaints().collect();
        assert!(told.len() == 1 && told[0].contains(words), "{name}: {told:?}");
        roll.take(gone("bad"));
        assert_eq!(roll.refused(), 0, "{name}");
    }
}

#[test]
fn a_lease_that_names_no_backend_is_of_udp() {
    let mut nameless = lease("n", "10.244.9.0/24", "192.0.2.9");
    nameless.backend = "".into();
    let mut roll = roll(std::slice::from_ref(&nameless));
    assert_eq!(peers(&roll), [], "vxlan here");
    assert!(roll.settle(&Measure { backend: "udp".into(), vni: None, ..measure() }));
    assert_eq!(peers(&roll), [nameless]);
}

#[test]
fn of_two_that_claim_one_subnet_the_same_one_wins_whatever_the_order() {
    let (a, b) = (lease("a", "10.244.8.0/24", "192.0.2.8"), lease("b", "10.244.8.128/25", "192.0.2.9"));
    for order in [vec![a.clone(), b.clone()], vec![b, a.clone()]] {
        let roll = roll(&order);
        assert_eq!(peers(&roll), std::slice::from_ref(&a));
        let told: Vec<&str> = roll.complaints().collect();
        assert!(told[0].starts_with("b is left out"), "{told:?}");
    }
}

#[test]
fn two_hosts_may_swap_their_subnets() {
    let (a, b) = (lease("a", "10.244.8.0/24", "192.0.2.8"), lease("b", "10.244.9.0/24", "192.0.2.9"));
    let mut roll = roll(&[a, b]);
    let (a, b) = (lease("a", "10.244.9.0/24", "192.0.2.8"), lease("b", "10.244.8.0/24", "192.0.2.9"));
    assert_eq!(roll.take(whole(&[a.clone(), b.clone()])).len(), 2);
    assert_eq!(peers(&roll), [a, b]);
}

#[test]
fn a_host_may_hold_an_old_lease_beside_its_new_one() {
    let (old, new) = (lease("old", "10.244.8.0/24", "192.0.2.8"), lease("new", "10.244.9.0/24", "192.0.2.8"));
    let mut roll = roll(&[old, new.clone()]);
    assert_eq!((roll.peers().count(), roll.refused()), (2, 0));
    roll.take(gone("old"));
    let mac = new.v4.unwrap().vtep.unwrap().mac;
    assert_eq!(roll.of_mac(mac, true).map(|found| found.0), Some(&new.holder));
}

#[test]
fn what_is_as_it_was_is_no_change() {
    let a = lease("a", "10.244.8.0/24", "192.0.2.8");
    let mut roll = roll(std::slice::from_ref(&a));
    assert!(!roll.is_new(&one(&a)) && !roll.is_new(&gone("nobody")) && roll.is_new(&gone("a")));
    assert_eq!(roll.take(one(&a)), []);
    assert_eq!(roll.take(whole(&[a])), []);
    assert_eq!(roll.take(gone("nobody")), []);
    assert!(!roll.settle(&measure()));
}

#[test]
fn a_lease_is_found_by_all_that_the_kernel_tells_of_it() {
    let (a, b) = (lease("a", "10.244.8.0/24", "192.0.2.8"), lease("b", "10.244.9.0/24", "192.0.2.9"));
    let mut twice = lease("c", "10.244.10.0/24", "192.0.2.9");
    twice.v4.as_mut().unwrap().vtep.as_mut().unwrap().mac.0[5] = 77;
    let mut roll = roll(&[a, b, twice]);
    let holder = |found: Option<(&Arc<str>, &Place)>| found.map(|(holder, _)| holder.to_string());
    assert_eq!(holder(roll.at("10.244.8.0/24".parse().unwrap())).as_deref(), Some("a"));
    assert_eq!(holder(roll.at("10.244.8.0/25".parse().unwrap())), None);
    assert_eq!(holder(roll.behind("10.244.9.0".parse().unwrap())).as_deref(), Some("b"));
    assert_eq!(holder(roll.of_mac(Mac([0x6a, 0, 0, 0, 0, 77]), true)).as_deref(), Some("c"));
    let public: IpAddr = "192.0.2.9".parse().unwrap();
    assert_eq!(roll.under(public).count(), 2);
    roll.take(gone("b"));
    assert_eq!(roll.under(public).map(|n| n.to_string()).collect::<Vec<_>>(), ["10.244.10.0/24"]);
}

proptest::proptest! {
    /// Whatever comes in whatever order: nothing overlaps, the indices agree with the peers, and everybody is served who
    /// could be.
    #[test]
    fn any_sequence_of_changes_leaves_a_roll_that_could_have_been_heard_at_once(
        steps in proptest::collection::vec((0u8..6, 0u8..4, 2u8..5, proptest::bool::ANY), 1..40)
    ) {
        let mut roll = roll(&[]);
        for (holder, subnet, public, leaves) in steps {
            let holder = format!("h{holder}");
            let lease = lease(&holder, &format!("10.244.{}.0/24", 8 + subnet), &format!("192.0.2.{public}"));
            roll.take(if leaves { gone(&holder) } else { one(&lease) });
            let served = peers(&roll);
            for (at, peer) in served.iter().enumerate() {
                let place = peer.v4.unwrap();
                assert_eq!(roll.at(place.subnet).map(|f| f.0), Some(&peer.holder));
                assert_eq!(roll.of_mac(place.vtep.unwrap().mac, true).map(|f| f.1.public), Some(place.public));
                assert!(roll.under(place.public).any(|net| net == place.subnet));
                assert!(served[..at].iter().all(|other| other.v4.unwrap().subnet != place.subnet));
            }
            assert_eq!(roll.index.held.len(), served.len());
            assert_eq!((roll.index.publics.len(), roll.index.ends.len()), (served.len(), served.len()));
            for refused in roll.readable().filter(|lease| roll.peer(&lease.holder).is_none()) {
                assert!(roll.index.contested(&refused.v4.unwrap()).is_some(), "{refused:?}");
            }
        }
    }
}
