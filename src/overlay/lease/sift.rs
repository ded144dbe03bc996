//! Which of the leases can be served: what does not fit is left out, by name and reason, and the rest goes on.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use keelson_netkit::IpNet;

use super::{Lease, Place};

/// Leases that do not contradict each other, and what was said against the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sifted {
    pub peers: Vec<Lease>,
    pub complaints: Vec<String>,
}

/// What leases are measured by.
#[derive(Debug, Clone)]
pub struct Measure<'a> {
    pub networks: &'a [IpNet],
    /// This host's subnets, and the addresses that others reach it by.
    pub own: &'a [IpNet],
    pub addresses: &'a [IpAddr],
    pub backend: &'a str,
    pub vni: Option<u32>,
    /// Who was served last time, with what: a newcomer does not take a subnet from them.
    pub served: &'a HashSet<(String, IpNet)>,
}

/// Keeps the leases that can be served.
pub fn sift(mut leases: Vec<Lease>, measure: &Measure<'_>) -> Sifted {
    let Measure { networks, own, addresses, backend, vni, served } = measure.clone();
    let is_new = |lease: &Lease| !lease.subnets().any(|net| served.contains(&(lease.holder.clone(), net)));
    // Whoever comes first keeps a contested subnet, so the order must not depend on the order of arrival.
    leases.sort_by_cached_key(|lease| (is_new(lease), lease.holder.clone()));
    let mut sifted = Sifted::default();
    let mut held: BTreeMap<(bool, Vec<u8>), (String, IpNet)> = BTreeMap::new();
    for mut lease in leases {
        // flanneld's udp backend does not say its name.
        let other = if lease.backend.is_empty() { "udp" } else { &lease.backend };
        if other != backend {
            sifted.complaints.push(format!(
                "{} runs {other} and this host runs {backend}: give all hosts of the network the same backend",
                lease.holder
            ));
            continue;
        }
        let holder = lease.holder.clone();
        let mut check = |place: Option<Place>| {
            let place = place?;
            match objection(&place, networks, own, addresses, vni).or_else(|| contested(&held, &place.subnet))
            {
                None => {
                    held.insert(order(&place.subnet), (holder.clone(), place.subnet));
                    Some(place)
                }
                Some(why) => {
                    sifted.complaints.push(format!("{holder} is left out: {why}"));
                    None
                }
            }
        };
        lease.v4 = check(lease.v4);
        lease.v6 = check(lease.v6);
        if lease.v4.is_some() || lease.v6.is_some() {
            sifted.peers.push(lease);
        }
    }
    sifted
}

fn objection(
    place: &Place,
    networks: &[IpNet],
    own: &[IpNet],
    addresses: &[IpAddr],
    vni: Option<u32>,
) -> Option<String> {
    let Place { subnet, public, vtep } = place;
    let inside = networks.iter().any(|net| net.contains(subnet.addr) && subnet.prefix > net.prefix);
    if !inside {
        return Some(format!("its subnet {subnet} is not within the network"));
    }
    if let Some(mine) = own.iter().find(|mine| mine.overlaps(subnet)) {
        return Some(format!(
            "its subnet {subnet} overlaps this host's own, {mine}: two hosts with one subnet; give one of them another"
        ));
    }
    if addresses.contains(public) {
        return Some(format!(
            "its public address {public} is this host's own: two hosts cannot share it; set --public-ip on one"
        ));
    }
    if networks.iter().any(|net| net.contains(*public)) {
        return Some(format!("its public address {public} lies within the pod network"));
    }
    match (vni, vtep) {
        (Some(_), None) => Some("it runs vxlan and tells no VtepMAC".to_owned()),
        (Some(wanted), Some(vtep)) if vtep.vni != wanted => {
            Some(format!("it is in VXLAN network {}, this host is in {wanted}", vtep.vni))
        }
        _ => None,
    }
}

/// The network's first address decides the place in the order; of overlapping ones at most the neighbours matter.
fn order(net: &IpNet) -> (bool, Vec<u8>) {
    let bytes = match net.network().addr {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    };
    (net.is_v4(), bytes)
}

fn contested(held: &BTreeMap<(bool, Vec<u8>), (String, IpNet)>, subnet: &IpNet) -> Option<String> {
    let at = order(subnet);
    let before = held.range(..=at.clone()).next_back();
    let after = held.range(at..).next();
    let (_, (holder, other)) = before.into_iter().chain(after).find(|(_, (_, net))| net.overlaps(subnet))?;
    Some(format!(
        "its subnet {subnet} overlaps {other} of {holder}: two hosts with one subnet; give one of them another"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Vtep;

    fn lease(holder: &str, subnet: &str, public: &str) -> Lease {
        let vtep = Some(Vtep { vni: 1, mac: "6a:00:00:00:00:01".parse().unwrap() });
        let place = Place { subnet: subnet.parse().unwrap(), public: public.parse().unwrap(), vtep };
        Lease { holder: holder.into(), backend: "vxlan".into(), v4: Some(place), v6: None }
    }

    fn sifted(leases: Vec<Lease>) -> Sifted {
        let nets = ["10.244.0.0/16".parse().unwrap()];
        let own = ["10.244.1.0/24".parse().unwrap()];
        let served = HashSet::from([("old".to_owned(), "10.244.7.0/24".parse().unwrap())]);
        let measure = Measure {
            networks: &nets,
            own: &own,
            addresses: &["192.0.2.1".parse().unwrap()],
            backend: "vxlan",
            vni: Some(1),
            served: &served,
        };
        sift(leases, &measure)
    }

    #[test]
    fn a_newcomer_takes_nothing_from_a_host_that_is_served() {
        let (old, new) =
            (lease("old", "10.244.7.0/24", "192.0.2.7"), lease("new", "10.244.7.0/24", "192.0.2.8"));
        let got = sifted(vec![new, old.clone()]);
        assert_eq!(got.peers, [old]);
        assert!(got.complaints[0].starts_with("new is left out"), "{:?}", got.complaints);
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
            (
                "another network",
                changed(|l| l.v4.as_mut().unwrap().vtep.as_mut().unwrap().vni = 2),
                "network 2",
            ),
            ("no tunnel end", changed(|l| l.v4.as_mut().unwrap().vtep = None), "no VtepMAC"),
        ] {
            let got = sifted(vec![good.clone(), bad]);
            assert_eq!(got.peers, std::slice::from_ref(&good), "{name}");
            assert!(
                got.complaints.len() == 1 && got.complaints[0].contains(words),
                "{name}: {:?}",
                got.complaints
            );
        }
    }

    #[test]
    fn a_lease_that_names_no_backend_is_of_udp() {
        let mut nameless = lease("n", "10.244.9.0/24", "192.0.2.9");
        nameless.backend = String::new();
        assert_eq!(sifted(vec![nameless.clone()]).peers, [], "vxlan here");
        let nets = ["10.244.0.0/16".parse().unwrap()];
        let none = HashSet::new();
        let measure =
            Measure { networks: &nets, own: &[], addresses: &[], backend: "udp", vni: None, served: &none };
        assert_eq!(sift(vec![nameless.clone()], &measure).peers, [nameless]);
    }

    #[test]
    fn of_two_that_claim_one_subnet_the_same_one_wins_whatever_the_order() {
        let (a, b) = (lease("a", "10.244.8.0/24", "192.0.2.8"), lease("b", "10.244.8.128/25", "192.0.2.9"));
        for order in [vec![a.clone(), b.clone()], vec![b, a.clone()]] {
            let got = sifted(order);
            assert_eq!(got.peers, std::slice::from_ref(&a));
            assert!(got.complaints[0].starts_with("b is left out"), "{:?}", got.complaints);
        }
    }
}
