//! Finds served leases by subnet, by VTEP MAC and by public address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use keelson_kit::cidr::{self, IpNetwork};
use keelson_netkit::Mac;

use super::LeasedSubnet;

#[derive(Debug, Default)]
pub(super) struct LeaseIndex {
    /// Lengths and holders of subnets by their first address. They do not overlap.
    pub(super) by_first_address: BTreeMap<IpAddr, (u8, Arc<str>)>,
    /// VTEPs: family, MAC, public address, holder. A host may hold several leases with one VTEP, such as an old one that has
    /// not expired yet.
    pub(super) tunnel_ends: BTreeSet<(bool, [u8; 6], IpAddr, Arc<str>)>,
    /// Subnets by public address; several for the same reason.
    pub(super) by_public: BTreeSet<(IpAddr, IpNetwork)>,
}

impl LeaseIndex {
    pub(super) fn insert(&mut self, holder: &Arc<str>, leased: &LeasedSubnet) {
        self.by_first_address.insert(leased.subnet.network(), (leased.subnet.prefix(), holder.clone()));
        self.by_public.insert((leased.public, leased.subnet));
        if let Some(vtep) = leased.vtep {
            self.tunnel_ends.insert((leased.subnet.is_ipv4(), vtep.mac.0, leased.public, holder.clone()));
        }
    }

    pub(super) fn remove(&mut self, holder: &Arc<str>, leased: &LeasedSubnet) {
        self.by_first_address.remove(&leased.subnet.network());
        self.by_public.remove(&(leased.public, leased.subnet));
        if let Some(vtep) = leased.vtep {
            self.tunnel_ends.remove(&(leased.subnet.is_ipv4(), vtep.mac.0, leased.public, holder.clone()));
        }
    }

    /// Rebuilds the trees without spare capacity.
    pub(super) fn shrink(&mut self) {
        self.by_first_address = std::mem::take(&mut self.by_first_address).into_iter().collect();
        self.tunnel_ends = std::mem::take(&mut self.tunnel_ends).into_iter().collect();
        self.by_public = std::mem::take(&mut self.by_public).into_iter().collect();
    }

    /// Describes what another lease already holds of this subnet, if anything.
    pub(super) fn conflict(&self, leased: &LeasedSubnet) -> Option<String> {
        let subnet = &leased.subnet;
        let at = subnet.network();
        // Subnets are ordered by first address and do not overlap, so only the two neighbours can overlap this one.
        let before = self.by_first_address.range(..=at).next_back();
        let after = self.by_first_address.range(at..).next();
        let mut near = before
            .into_iter()
            .chain(after)
            .map(|(at, (prefix, owner))| (cidr::with_length(*at, *prefix), owner));
        if let Some((other, owner)) = near.find(|(net, _)| cidr::overlap(*net, *subnet)) {
            return Some(format!(
                "its subnet {subnet} overlaps {other} of {owner}: two hosts with one subnet; give one of them another"
            ));
        }
        let vtep = leased.vtep?;
        let owner = self.by_mac(vtep.mac, subnet.is_ipv4()).find(|(public, _)| *public != leased.public)?.1;
        Some(format!("its VtepMAC {} is that of {owner}: two hosts with one address", vtep.mac))
    }

    pub(super) fn by_subnet(&self, subnet: IpNetwork) -> Option<&Arc<str>> {
        let found = self.by_first_address.get(&subnet.network());
        found.filter(|(prefix, _)| *prefix == subnet.prefix()).map(|(_, holder)| holder)
    }

    pub(super) fn by_first_address(&self, addr: IpAddr) -> Option<&Arc<str>> {
        self.by_first_address.get(&addr).map(|(_, holder)| holder)
    }

    /// Public address and holder of each lease with this VTEP MAC.
    pub(super) fn by_mac(&self, mac: Mac, v4: bool) -> impl Iterator<Item = (IpAddr, &Arc<str>)> {
        let least = (v4, mac.0, IpAddr::from([0; 4]), Arc::from(""));
        let same = move |end: &&(bool, [u8; 6], IpAddr, Arc<str>)| (end.0, end.1) == (v4, mac.0);
        self.tunnel_ends.range(least..).take_while(same).map(|end| (end.2, &end.3))
    }

    pub(super) fn subnets_at(&self, public: IpAddr) -> impl Iterator<Item = IpNetwork> + '_ {
        let least = cidr::everything(true);
        self.by_public.range((public, least)..).take_while(move |(at, _)| *at == public).map(|(_, net)| *net)
    }

    pub(super) fn all_by_public(&self) -> impl Iterator<Item = (IpAddr, IpNetwork)> + '_ {
        self.by_public.iter().copied()
    }
}
