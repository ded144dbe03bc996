//! The results of all probes, and what follows from them for each peer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::lease::LeasedSubnet;
use crate::plan::{Carrier, FallbackPeers};
use crate::probe::{ProbeHistory, ProbeResult, ProbeTarget, diagnose};

/// The results of all probes so far.
#[derive(Debug, Default)]
pub struct ProbeResults {
    /// By holder and family (true is IPv4).
    histories: BTreeMap<(Arc<str>, bool), ProbeHistory>,
    troubled: BTreeSet<Arc<str>>,
    fallback_peers: FallbackPeers,
    checksums_are_damaged: bool,
    /// Whether udp can replace the tunnel.
    pub may_fall_back: bool,
    /// The tunnel's port.
    pub port: Option<u16>,
}

/// The part of the results that decides how packets travel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathDecisions {
    pub fallback_peers: FallbackPeers,
    pub checksums_are_damaged: bool,
}

impl ProbeResults {
    pub fn decisions(&self) -> PathDecisions {
        PathDecisions {
            fallback_peers: self.fallback_peers.clone(),
            checksums_are_damaged: self.checksums_are_damaged,
        }
    }

    pub fn remove(&mut self, holder: &Arc<str>) {
        for v4 in [true, false] {
            self.histories.remove(&(holder.clone(), v4));
            self.fallback_peers.remove(&(holder.clone(), v4));
        }
        self.troubled.remove(holder);
    }

    pub fn history(&self, holder: &Arc<str>, v4: bool) -> Option<&ProbeHistory> {
        self.histories.get(&(holder.clone(), v4))
    }

    /// Peers with a problem.
    pub fn troubled(&self) -> &BTreeSet<Arc<str>> {
        &self.troubled
    }

    /// The problem of one subnet of a peer.
    pub fn problem(
        &self,
        holder: &Arc<str>,
        leased: &LeasedSubnet,
        carrier: Carrier,
        mtu: u32,
    ) -> Option<String> {
        let history = self.history(holder, leased.subnet.is_ipv4())?;
        let public = leased.public;
        if history.fallen_back {
            return Some(format!(
                "nothing comes back from {public} through the VXLAN tunnel, so udp carries its traffic: UDP port {} is \
                 probably filtered between the hosts",
                self.port.unwrap_or_default()
            ));
        }
        history.is_trouble().then(|| diagnose(history.latest(), carrier, public, self.port, mtu)).flatten()
    }

    /// Adds one result; returns whether it is conclusive.
    pub fn add(&mut self, target: &ProbeTarget, result: ProbeResult) -> bool {
        let v4 = target.overlay.is_ipv4();
        let may = self.may_fall_back && target.carrier != Carrier::Direct;
        let wrong = diagnose(&result, target.carrier, target.public, self.port, target.mtu).is_some();
        let key = (target.holder.clone(), v4);
        let history = self.histories.entry(key.clone()).or_default();
        history.add(result, may);
        history.set_wrong(wrong);
        let (fallen_back, clear) = (history.fallen_back, !history.is_suspect());
        self.checksums_are_damaged |= history.checksums_are_damaged();
        match fallen_back {
            true => self.fallback_peers.insert(key),
            false => self.fallback_peers.remove(&key),
        };
        let in_trouble = |r: &ProbeHistory| r.is_trouble() || r.fallen_back;
        let troubled =
            [true, false].into_iter().any(|v4| self.history(&target.holder, v4).is_some_and(in_trouble));
        match troubled {
            true => self.troubled.insert(target.holder.clone()),
            false => self.troubled.remove(&target.holder),
        };
        clear
    }
}
