//! Applies changes of a few leases. Touches only what belongs to them, however many other leases there are.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{ActionLog, Engine};
use crate::kernel;
use crate::lease::{LeaseUpdate, LeasedSubnet, PeerChange};
use crate::peer_filter::{self, SetElements};
use crate::plan::{Carrier, FallbackPeers, KernelAction, plan_lease_changes};

/// The result of applying lease changes.
#[derive(Debug, Default)]
pub struct AppliedLeaseChanges {
    pub performed: ActionLog,
    /// Set where the changes could not be applied one by one.
    pub full_reconcile_reason: Option<String>,
}

impl Engine {
    /// Whether the last reconcile succeeded, so that lease changes can build on it.
    pub fn is_reconciled(&self) -> bool {
        self.links.is_some()
    }

    pub fn apply_lease_changes(
        &mut self,
        update: Option<LeaseUpdate>,
        fallback_peers: &FallbackPeers,
    ) -> AppliedLeaseChanges {
        let transitions = self.transitions(update, fallback_peers);
        if transitions.is_empty() {
            return AppliedLeaseChanges::default();
        }
        self.unsaved = true;
        let mut applied = AppliedLeaseChanges::default();
        if let Err(why) = self.act_on(&transitions, &mut applied.performed) {
            self.links = None;
            applied.full_reconcile_reason = Some(why);
        }
        self.update_udp_peers(transitions.iter().flat_map(|c| c.public_addresses()), &mut applied.performed);
        applied
    }

    /// Updates the lease table and the fallback peers, and returns the peers that changed.
    fn transitions(
        &mut self,
        update: Option<LeaseUpdate>,
        fallback_peers: &FallbackPeers,
    ) -> Vec<PeerTransition> {
        let mut results = self.shared.results();
        let mut network = self.shared.network();
        let before = std::mem::replace(&mut network.fallback_peers, fallback_peers.clone());
        let allowed = update.map(|update| network.leases.apply(update)).unwrap_or_default();
        let mut changes: BTreeMap<Arc<str>, PeerChange> =
            allowed.into_iter().map(|change| (change.holder.clone(), change)).collect();
        for (holder, _) in before.symmetric_difference(fallback_peers) {
            let peer = network.leases.peer(holder);
            let same = || PeerChange { holder: holder.clone(), before: peer.clone(), after: peer.clone() };
            changes.entry(holder.clone()).or_insert_with(same);
        }
        for change in changes.values() {
            network.update_unreachable(&change.holder);
            if change.after.is_none() {
                results.remove(&change.holder);
            }
        }
        let Some(setup) = &network.setup else { return Vec::new() };
        let transitions = changes.into_values().map(|change| PeerTransition {
            before: change.before.iter().flat_map(|peer| setup.paths(peer, &before)).collect(),
            after: change.after.iter().flat_map(|peer| setup.paths(peer, fallback_peers)).collect(),
            change,
        });
        transitions.collect()
    }

    fn act_on(&mut self, transitions: &[PeerTransition], performed: &mut ActionLog) -> Result<(), String> {
        let links = self.links.as_ref().ok_or("the kernel is not as it should be")?;
        let actions: Vec<KernelAction> = {
            let network = self.shared.network();
            let setup = network.setup.as_ref().ok_or("there is no interface to other hosts")?;
            let before: Vec<_> = transitions.iter().flat_map(|s| s.before.iter().copied()).collect();
            let after: Vec<_> = transitions.iter().flat_map(|s| s.after.iter().copied()).collect();
            {
                let is_used = |mac, v4| network.leases.by_mac(mac, v4).is_some();
                plan_lease_changes(setup, links, &before, &after, is_used)
            }
            .ok_or("a device is missing")?
        };
        // Accept packets from a peer before it is routed to.
        self.update_peer_filter(transitions)?;
        for action in actions {
            kernel::act(&mut self.netlink.route, &action).map_err(|error| error.to_string())?;
            performed.add(action);
        }
        Ok(())
    }

    fn update_peer_filter(&mut self, transitions: &[PeerTransition]) -> Result<(), String> {
        let Some(lengths) = &self.filtered_lengths else { return Ok(()) };
        let leased_subnets = |of: fn(&PeerChange) -> &Option<crate::lease::Lease>| -> Vec<LeasedSubnet> {
            transitions
                .iter()
                .filter_map(|s| of(&s.change).as_ref())
                .flat_map(|p| [p.v4, p.v6])
                .flatten()
                .collect()
        };
        let (before, after) = (leased_subnets(|c| &c.before), leased_subnets(|c| &c.after));
        if after.iter().any(|leased| !lengths.contains(&(leased.subnet.is_ipv4(), leased.subnet.prefix()))) {
            return Err("a subnet of a new size came, for which there is no rule yet".into());
        }
        let mut allowed: SetElements = after.iter().flat_map(peer_filter::elements).collect();
        let mut removed: SetElements =
            before.iter().flat_map(peer_filter::elements).filter(|key| !allowed.contains(key)).collect();
        allowed.sort();
        allowed.dedup();
        removed.sort();
        removed.dedup();
        // A host that has another lease stays allowed.
        let others: SetElements = {
            let network = self.shared.network();
            let other = |leased: &LeasedSubnet| {
                let (_, leased) =
                    network.leases.by_subnet(network.leases.subnets_at(leased.public).next()?)?;
                Some(peer_filter::elements(leased))
            };
            before.iter().filter_map(other).flatten().collect()
        };
        removed.retain(|key| !others.contains(key));
        peer_filter::update_elements(&mut self.netlink.netfilter, &allowed, &removed)
            .map_err(|error| error.to_string())
    }
}

/// One peer's paths before and after a change.
struct PeerTransition {
    change: PeerChange,
    before: Vec<(LeasedSubnet, Carrier)>,
    after: Vec<(LeasedSubnet, Carrier)>,
}

impl PeerTransition {
    /// Its public addresses, before and after.
    fn public_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let peers = self.change.before.iter().chain(self.change.after.iter());
        peers.flat_map(|peer| peer.leased_subnets().map(|leased| leased.public))
    }
}
