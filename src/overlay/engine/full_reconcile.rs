//! Reconciles everything: finds the underlay, computes the desired state, and makes the kernel match it.

use std::collections::HashSet;
use std::net::IpAddr;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::sysctl;

use super::{ActionLog, Engine, ReconcileReport};
use crate::config::Backend;
use crate::firewall::{self, RuleConfig};
use crate::kernel::{self, ReconcileOutcome};
use crate::lease::{LeaseUpdate, LeasedSubnet, Requirements};
use crate::peer_filter;
use crate::plan::{Desired, FallbackPeers, HostSetup, KernelLinks, desired};
use crate::source::SourceStatus;
use crate::underlay::{self, Underlay, UnderlayError};

impl Engine {
    /// Without a subnet only the underlay is found, so that a lease can be requested.
    pub fn full_reconcile(
        &mut self,
        source: &SourceStatus,
        update: Option<LeaseUpdate>,
        fallback_peers: &FallbackPeers,
    ) -> Result<ReconcileReport, UnderlayError> {
        self.links = None;
        let families = (self.conf.v4.is_some(), self.conf.v6.is_some());
        let public4 = source.overwrite4.or(self.options.public_v4.map(IpAddr::V4));
        let public6 = source.overwrite6.or(self.options.public_v6.map(IpAddr::V6));
        let given: Vec<IpAddr> = public4.into_iter().chain(public6).collect();
        let found = underlay::choose(&mut self.netlink.route, &self.options.interface, &given, families);
        let underlay = match found {
            Ok(underlay) => underlay,
            Err(error) => {
                self.apply_update(update);
                return Err(error);
            }
        };
        let mut problems: Vec<String> = self.config_change().into_iter().collect();
        let subnets = self.subnets(source, &mut problems);
        let own = self.own(&underlay, public4, public6);
        let setup = self.setup(&underlay, subnets.clone());
        let addresses = underlay.nets.iter().map(|net| net.ip()).chain(given).collect();
        let peers_changed = self.update_leases(&setup, addresses, update, fallback_peers);
        let mut report = ReconcileReport {
            underlay,
            own,
            subnets,
            mtu: setup.mtu(),
            problems,
            performed: ActionLog::default(),
            complete: false,
            counters: Vec::new(),
        };
        if !report.subnets.is_empty() {
            self.reconcile_kernel(&mut report, &setup, peers_changed);
            self.save_own_state(source, &report, &setup);
        }
        Ok(report)
    }

    /// This host's own subnets, those outside the network left out.
    fn subnets(&self, source: &SourceStatus, problems: &mut Vec<String>) -> Vec<IpNetwork> {
        let networks = self.networks();
        let within =
            |net: &IpNetwork| networks.iter().any(|n| n.contains(net.ip()) && n.prefix() <= net.prefix());
        let mut subnets =
            if source.subnets.is_empty() { self.state.subnets() } else { source.subnets.clone() };
        for net in subnets.iter().filter(|net| !within(net)) {
            problems.push(format!(
                "this host's subnet {net} is not within the network {}: the pod range of the cluster and the network configuration must agree",
                networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ));
        }
        subnets.retain(within);
        subnets
    }

    fn setup(&self, underlay: &Underlay, subnets: Vec<IpNetwork>) -> HostSetup {
        HostSetup {
            backend: self.conf.backend.clone(),
            networks: self.networks(),
            subnets,
            underlay: underlay.index,
            underlay_mtu: underlay.mtu,
            underlay_nets: underlay.nets.clone(),
            macs: self.macs,
            local4: underlay.v4,
            local6: underlay.v6,
            checksum_offload: self.checksum_offload,
        }
    }

    /// Applies the update, and validates leases against this host's current setup. Returns whether peers may have changed.
    fn update_leases(
        &mut self,
        setup: &HostSetup,
        addresses: Vec<IpAddr>,
        update: Option<LeaseUpdate>,
        fallback_peers: &FallbackPeers,
    ) -> bool {
        let requirements = Requirements {
            networks: setup.networks.clone(),
            own: setup.subnets.clone(),
            addresses,
            macs: vec![self.macs.0, self.macs.1],
            backend: setup.backend.name().to_owned(),
            vni: self.vni(),
        };
        // Before the update, so that saved leases keep what they hold.
        let requirements_changed = self.shared.network().leases.set_requirements(&requirements);
        let leases_changed = self.apply_update(update);
        let mut network = self.shared.network();
        network.setup = Some(setup.clone());
        network.fallback_peers.clone_from(fallback_peers);
        network.update_all_unreachable();
        requirements_changed || leases_changed
    }

    /// Returns whether any peer changed.
    fn apply_update(&mut self, update: Option<LeaseUpdate>) -> bool {
        let Some(update) = update else { return false };
        let changes = self.shared.network().leases.apply(update);
        let mut results = self.shared.results();
        changes
            .iter()
            .filter(|change| change.after.is_none())
            .for_each(|change| results.remove(&change.holder));
        self.unsaved |= !changes.is_empty();
        !changes.is_empty()
    }

    fn reconcile_kernel(&mut self, report: &mut ReconcileReport, setup: &HostSetup, peers_changed: bool) {
        let mut wanted = {
            let network = self.shared.network();
            desired(setup, network.leases.peers(), &network.fallback_peers)
        };
        let in_use: HashSet<&str> = wanted.devices.iter().map(|d| d.name.as_str()).collect();
        let retired = self.state.devices.iter().filter(|name| !in_use.contains(name.as_str()));
        wanted.retired = retired.filter_map(|name| name.as_str().try_into().ok()).collect();
        if let Err(error) = self.enable_forwarding() {
            report.problems.push(error.to_string());
        }
        if let Err(error) = self.ensure_udp_path(report, peers_changed) {
            report.problems.push(error);
        }
        match kernel::reconcile(
            &mut self.netlink.route,
            &wanted,
            &report.underlay.name,
            &mut report.performed,
        ) {
            Ok(ReconcileOutcome { failed, observed }) => {
                report.complete = failed.is_empty();
                report.problems.extend(failed);
                self.links = KernelLinks::resolve(setup, wanted.devices.iter().map(|d| d.role), &observed);
            }
            Err(error) => report.problems.push(error.to_string()),
        }
        self.ensure_firewall(report, &wanted);
        self.ensure_peer_filter(report);
        if !report.complete {
            self.links = None;
        }
    }

    fn ensure_firewall(&mut self, report: &mut ReconcileReport, wanted: &Desired) {
        let rules = RuleConfig::new(
            &wanted.networks,
            self.options.firewall.masquerade,
            self.options.firewall.random_ports,
            self.options.firewall.forward_rules,
        );
        match firewall::ensure(&mut self.netlink.netfilter, &rules) {
            Ok(true) => report.performed.add("set the nf_tables rules"),
            Ok(false) => {}
            Err(error) => {
                report.complete = false;
                report.problems.push(error.to_string());
            }
        }
    }

    /// Accepts tunnel packets only from hosts with a lease, where the kernel does not check that itself.
    fn ensure_peer_filter(&mut self, report: &mut ReconcileReport) {
        self.filtered_lengths = None;
        let outcome = match &self.conf.backend {
            Backend::Vxlan(vxlan) if self.options.firewall.leased_only => {
                let leased_subnets: Vec<LeasedSubnet> = {
                    let network = self.shared.network();
                    network.leases.peers().flat_map(|peer| [peer.v4, peer.v6]).flatten().collect()
                };
                let lengths = peer_filter::prefix_lengths(&leased_subnets);
                let outcome =
                    peer_filter::ensure(&mut self.netlink.netfilter, vxlan, &lengths, &leased_subnets);
                self.filtered_lengths = Some(lengths);
                outcome
            }
            _ => peer_filter::remove(&mut self.netlink.netfilter),
        };
        match outcome {
            Ok(true) => report.performed.add("set the tunnel's peer filter"),
            Ok(false) => {}
            Err(error) => {
                report.complete = false;
                report.problems.push(error.to_string());
            }
        }
        if self.filtered_lengths.is_some() {
            report.counters.extend(peer_filter::dropped(&mut self.netlink.netfilter).unwrap_or_default());
        }
    }

    fn enable_forwarding(&self) -> Result<(), keelson_netkit::Error> {
        if self.conf.v4.is_some() {
            sysctl::ensure("net/ipv4/ip_forward", "1")?;
        }
        if self.conf.v6.is_some() {
            sysctl::ensure("net/ipv6/conf/all/forwarding", "1")?;
        }
        Ok(())
    }

    /// Saves what concerns this host at once. Peers may wait, see [`Engine::save`].
    fn save_own_state(&mut self, source: &SourceStatus, report: &ReconcileReport, setup: &HostSetup) {
        let before = self.state.clone();
        let wanted = desired(setup, std::iter::empty(), &FallbackPeers::new());
        let mut devices: Vec<String> = wanted.devices.iter().map(|d| d.name.to_string()).collect();
        devices.dedup();
        if !report.complete {
            devices.extend(
                self.state.devices.iter().filter(|name| !devices.contains(name)).cloned().collect::<Vec<_>>(),
            );
        }
        self.state.devices = devices;
        if source.synced {
            self.state.subnets = report.subnets.iter().map(ToString::to_string).collect();
            self.state.published =
                report.own.public4.iter().chain(report.own.public6.iter()).map(ToString::to_string).collect();
        }
        if self.state != before || !self.options.files.state_dir.join("state.json").exists() {
            self.save();
        }
    }
}
