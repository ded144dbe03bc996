use super::*;
use crate::lease::Vtep;

fn lease(holder: &str, subnet: &str, public: &str) -> Lease {
    // Unique for each public address: its last byte.
    let last = public.rsplit('.').next().and_then(|n| n.parse().ok()).unwrap();
    let vtep = Some(Vtep { vni: 1, mac: Mac([0x6a, 0, 0, 0, 0, last]) });
    let leased = LeasedSubnet { subnet: subnet.parse().unwrap(), public: public.parse().unwrap(), vtep };
    Lease { holder: holder.into(), backend: "vxlan".into(), v4: Some(leased), v6: None }
}

fn requirements() -> Requirements {
    Requirements {
        networks: vec!["10.244.0.0/16".parse().unwrap()],
        own: vec!["10.244.1.0/24".parse().unwrap()],
        addresses: vec!["192.0.2.1".parse().unwrap()],
        macs: vec![Mac([0x6a, 0, 0, 0, 0, 1])],
        backend: "vxlan".into(),
        vni: Some(1),
    }
}

fn table(leases: &[Lease]) -> LeaseTable {
    let mut table = LeaseTable::default();
    table.set_requirements(&requirements());
    table.apply(whole(leases));
    table
}

fn whole(leases: &[Lease]) -> LeaseUpdate {
    LeaseUpdate::Snapshot(leases.iter().map(|l| (l.holder.clone(), Ok(l.clone()))).collect())
}

fn one(lease: &Lease) -> LeaseUpdate {
    LeaseUpdate::Changes(BTreeMap::from([(lease.holder.clone(), Some(Ok(lease.clone())))]))
}

fn gone(holder: &str) -> LeaseUpdate {
    LeaseUpdate::Changes(BTreeMap::from([(Arc::from(holder), None)]))
}

fn peers(table: &LeaseTable) -> Vec<Lease> {
    table.peers().collect()
}

#[test]
fn a_newcomer_takes_nothing_from_a_host_that_is_served_and_gets_it_when_that_one_leaves() {
    let (old, new) = (lease("old", "10.244.7.0/24", "192.0.2.7"), lease("new", "10.244.7.0/24", "192.0.2.8"));
    let mut table = table(std::slice::from_ref(&old));
    assert_eq!(table.apply(whole(&[new.clone(), old.clone()])), []);
    assert_eq!(peers(&table), std::slice::from_ref(&old));
    let rejections = table.new_rejections();
    assert!(rejections[0].starts_with("new is left out"), "{rejections:?}");
    let changes = table.apply(gone("old"));
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!(peers(&table), [new]);
    assert!(table.rejected_count() == 0 && table.new_rejections().is_empty());
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
        let mut table = table(std::slice::from_ref(&good));
        table.apply(one(&bad));
        assert_eq!(peers(&table), std::slice::from_ref(&good), "{name}");
        let rejections: Vec<&str> = table.rejections().collect();
        assert!(rejections.len() == 1 && rejections[0].contains(words), "{name}: {rejections:?}");
        table.apply(gone("bad"));
        assert_eq!(table.rejected_count(), 0, "{name}");
    }
}

#[test]
fn a_lease_that_names_no_backend_is_of_udp() {
    let mut nameless = lease("n", "10.244.9.0/24", "192.0.2.9");
    nameless.backend = "".into();
    let mut table = table(std::slice::from_ref(&nameless));
    assert_eq!(peers(&table), [], "vxlan here");
    assert!(table.set_requirements(&Requirements { backend: "udp".into(), vni: None, ..requirements() }));
    assert_eq!(peers(&table), [nameless]);
}

#[test]
fn of_two_that_claim_one_subnet_the_same_one_wins_whatever_the_order() {
    let (a, b) = (lease("a", "10.244.8.0/24", "192.0.2.8"), lease("b", "10.244.8.128/25", "192.0.2.9"));
    for order in [vec![a.clone(), b.clone()], vec![b, a.clone()]] {
        let table = table(&order);
        assert_eq!(peers(&table), std::slice::from_ref(&a));
        let rejections: Vec<&str> = table.rejections().collect();
        assert!(rejections[0].starts_with("b is left out"), "{rejections:?}");
    }
}

#[test]
fn two_hosts_may_swap_their_subnets() {
    let (a, b) = (lease("a", "10.244.8.0/24", "192.0.2.8"), lease("b", "10.244.9.0/24", "192.0.2.9"));
    let mut table = table(&[a, b]);
    let (a, b) = (lease("a", "10.244.9.0/24", "192.0.2.8"), lease("b", "10.244.8.0/24", "192.0.2.9"));
    assert_eq!(table.apply(whole(&[a.clone(), b.clone()])).len(), 2);
    assert_eq!(peers(&table), [a, b]);
}

#[test]
fn a_host_may_hold_an_old_lease_beside_its_new_one() {
    let (old, new) = (lease("old", "10.244.8.0/24", "192.0.2.8"), lease("new", "10.244.9.0/24", "192.0.2.8"));
    let mut table = table(&[old, new.clone()]);
    assert_eq!((table.peers().count(), table.rejected_count()), (2, 0));
    table.apply(gone("old"));
    let mac = new.v4.unwrap().vtep.unwrap().mac;
    assert_eq!(table.by_mac(mac, true).map(|found| found.0), Some(&new.holder));
}

#[test]
fn what_is_as_it_was_is_no_change() {
    let a = lease("a", "10.244.8.0/24", "192.0.2.8");
    let mut table = table(std::slice::from_ref(&a));
    assert!(
        !table.changes_anything(&one(&a))
            && !table.changes_anything(&gone("nobody"))
            && table.changes_anything(&gone("a"))
    );
    assert_eq!(table.apply(one(&a)), []);
    assert_eq!(table.apply(whole(&[a])), []);
    assert_eq!(table.apply(gone("nobody")), []);
    assert!(!table.set_requirements(&requirements()));
}

#[test]
fn a_lease_is_found_by_everything_that_the_kernel_reports_of_it() {
    let (a, b) = (lease("a", "10.244.8.0/24", "192.0.2.8"), lease("b", "10.244.9.0/24", "192.0.2.9"));
    let mut twice = lease("c", "10.244.10.0/24", "192.0.2.9");
    twice.v4.as_mut().unwrap().vtep.as_mut().unwrap().mac.0[5] = 77;
    let mut table = table(&[a, b, twice]);
    let holder = |found: Option<(&Arc<str>, &LeasedSubnet)>| found.map(|(holder, _)| holder.to_string());
    assert_eq!(holder(table.by_subnet("10.244.8.0/24".parse().unwrap())).as_deref(), Some("a"));
    assert_eq!(holder(table.by_subnet("10.244.8.0/25".parse().unwrap())), None);
    assert_eq!(holder(table.by_first_address("10.244.9.0".parse().unwrap())).as_deref(), Some("b"));
    assert_eq!(holder(table.by_mac(Mac([0x6a, 0, 0, 0, 0, 77]), true)).as_deref(), Some("c"));
    let public: IpAddr = "192.0.2.9".parse().unwrap();
    assert_eq!(table.subnets_at(public).count(), 2);
    table.apply(gone("b"));
    assert_eq!(table.subnets_at(public).map(|n| n.to_string()).collect::<Vec<_>>(), ["10.244.10.0/24"]);
}

proptest::proptest! {
    /// After any sequence of changes: nothing overlaps, the index agrees with the peers, and every lease that could be served
    /// is served.
    #[test]
    fn any_sequence_of_changes_leaves_a_table_that_one_snapshot_could_have_made(
        steps in proptest::collection::vec((0u8..6, 0u8..4, 2u8..5, proptest::bool::ANY), 1..40)
    ) {
        let mut table = table(&[]);
        for (holder, subnet, public, leaves) in steps {
            let holder = format!("h{holder}");
            let lease = lease(&holder, &format!("10.244.{}.0/24", 8 + subnet), &format!("192.0.2.{public}"));
            table.apply(if leaves { gone(&holder) } else { one(&lease) });
            let served = peers(&table);
            for (at, peer) in served.iter().enumerate() {
                let leased = peer.v4.unwrap();
                assert_eq!(table.by_subnet(leased.subnet).map(|f| f.0), Some(&peer.holder));
                assert_eq!(table.by_mac(leased.vtep.unwrap().mac, true).map(|f| f.1.public), Some(leased.public));
                assert!(table.subnets_at(leased.public).any(|net| net == leased.subnet));
                assert!(served[..at].iter().all(|other| other.v4.unwrap().subnet != leased.subnet));
            }
            assert_eq!(table.index.by_first_address.len(), served.len());
            assert_eq!((table.index.by_public.len(), table.index.tunnel_ends.len()), (served.len(), served.len()));
            for rejected in table.readable().filter(|lease| table.peer(&lease.holder).is_none()) {
                assert!(table.index.conflict(&rejected.v4.unwrap()).is_some(), "{rejected:?}");
            }
        }
    }
}
