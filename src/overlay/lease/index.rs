//! Leases that are served, by subnet, by tunnel's end and by public address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use keelson_netkit::{IpNet, Mac};

use super::Place;

#[derive(Debug, Default)]
pub(super) struct Index {
    /// Lengths and holders of subnets by their first address. They do not overlap.
    pub(super) held: BTreeMap<IpAddr, (u8, Arc<str>)>,
    /// Tunnels' ends by family, with the address behind them. A host may hold several leases with one and the same end,
    /// such as an old one that has not run out yet.
    pub(super) ends: BTreeSet<(bool, [u8; 6], IpAddr, Arc<str>)>,
    /// For the same reason.
    pub(super) publics: BTreeSet<(IpAddr, IpNet)>,
}

impl Index {
    pub(super) fn hold(&mut self, holder: &Arc<str>, place: &Place) {
        self.held.insert(place.subnet.network().addr, (place.subnet.prefix, holder.clone()));
        self.publics.insert((place.public, place.subnet));
        if let Some(vtep) = place.vtep {
            self.ends.insert((place.subnet.is_v4(), vtep.mac.0, place.public, holder.clone()));
        }
    }

    pub(super) fn release(&mut self, holder: &Arc<str>, place: &Place) {
        self.held.remove(&place.subnet.network().addr);
        self.publics.remove(&(place.public, place.subnet));
        if let Some(vtep) = place.vtep {
            self.ends.remove(&(place.subnet.is_v4(), vtep.mac.0, place.public, holder.clone()));
        }
    }

    /// Gives back what room there is for more.
    pub(super) fn pack(&mut self) {
        self.held = std::mem::take(&mut self.held).into_iter().collect();
        self.ends = std::mem::take(&mut self.ends).into_iter().collect();
        self.publics = std::mem::take(&mut self.publics).into_iter().collect();
    }

    /// Whether another holds something of this place, in words.
    pub(super) fn contested(&self, place: &Place) -> Option<String> {
        let subnet = &place.subnet;
        let at = subnet.network().addr;
        // The first address decides the place in the order; of overlapping ones at most the neighbours matter.
        let before = self.held.range(..=at).next_back();
        let after = self.held.range(at..).next();
        let mut near =
            before.into_iter().chain(after).map(|(at, (prefix, owner))| (IpNet::new(*at, *prefix), owner));
        if let Some((other, owner)) = near.find(|(net, _)| net.overlaps(subnet)) {
            return Some(format!(
                "its subnet {subnet} overlaps {other} of {owner}: two hosts with one subnet; give one of them another"
            ));
        }
        let vtep = place.vtep?;
        let owner = self.of_mac(vtep.mac, subnet.is_v4()).find(|(public, _)| *public != place.public)?.1;
        Some(format!("its VtepMAC {} is that of {owner}: two hosts with one address", vtep.mac))
    }

    pub(super) fn at(&self, subnet: IpNet) -> Option<&Arc<str>> {
        let held = self.held.get(&subnet.network().addr);
        held.filter(|(prefix, _)| *prefix == subnet.prefix).map(|(_, holder)| holder)
    }

    pub(super) fn beginning_with(&self, addr: IpAddr) -> Option<&Arc<str>> {
        self.held.get(&addr).map(|(_, holder)| holder)
    }

    /// Those with a tunnel's end, each with the address behind it.
    pub(super) fn of_mac(&self, mac: Mac, v4: bool) -> impl Iterator<Item = (IpAddr, &Arc<str>)> {
        let least = (v4, mac.0, IpAddr::from([0; 4]), Arc::from(""));
        let same = move |end: &&(bool, [u8; 6], IpAddr, Arc<str>)| (end.0, end.1) == (v4, mac.0);
        self.ends.range(least..).take_while(same).map(|end| (end.2, &end.3))
    }

    pub(super) fn under(&self, public: IpAddr) -> impl Iterator<Item = IpNet> + '_ {
        let least = IpNet::new(IpAddr::from([0; 4]), 0);
        self.publics.range((public, least)..).take_while(move |(at, _)| *at == public).map(|(_, net)| *net)
    }

    pub(super) fn published(&self) -> impl Iterator<Item = (IpAddr, IpNet)> + '_ {
        self.publics.iter().copied()
    }
}
