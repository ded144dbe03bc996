//! Makes the kernel match the leases: everything at once ([`full_reconcile`]), or only what some changed leases need
//! ([`apply_lease_changes`]).

mod apply_lease_changes;
mod full_reconcile;
mod udp_path;

pub use apply_lease_changes::AppliedLeaseChanges;

use std::net::IpAddr;
use std::sync::Arc;

use keelson_kit::cidr::IpNetwork;
use keelson_netkit::monitor::Change;
use keelson_netkit::{Mac, Socket};
use keelson_overlay_udp as udp;

use crate::config::{Backend, LeaseSource, NetConf, Options};
use crate::files;
use crate::lease::{OwnAttributes, Vtep};
use crate::machine;
use crate::peer_filter::{self, PrefixLengths};
use crate::plan::{ChangeFilter, KernelLinks};
use crate::saved_state::SavedState;
use crate::shared_state::SharedState;
use crate::underlay::{self, Underlay};
use crate::{firewall, lease};

/// Holds everything that reconciling needs. It blocks, so it is moved to a thread and back.
pub struct Engine {
    options: Options,
    conf: NetConf,
    macs: (Mac, Mac),
    netlink: Netlink,
    path: Option<udp_path::RunningPath>,
    state: SavedState,
    checksum_offload: bool,
    shared: Arc<SharedState>,
    /// Interface indexes as of the last reconcile; None where it failed or is outdated.
    links: Option<KernelLinks>,
    /// Prefix lengths the peer filter has rules for; None without a peer filter.
    filtered_lengths: Option<PrefixLengths>,
    /// Peers changed since they were saved.
    unsaved: bool,
}

/// The sockets to the kernel.
struct Netlink {
    route: Socket,
    netfilter: Socket,
    /// The port of `netfilter`, by which notifications of our own changes are recognised.
    netfilter_port: u32,
}

/// What one full reconcile found and did.
#[derive(Debug)]
pub struct ReconcileReport {
    pub underlay: Underlay,
    pub own: OwnAttributes,
    pub subnets: Vec<IpNetwork>,
    pub mtu: u32,
    /// What could not be read or done.
    pub problems: Vec<String>,
    pub performed: ActionLog,
    /// Whether everything is in place.
    pub complete: bool,
    pub counters: Vec<(String, u64)>,
}

/// Descriptions of performed actions; of many only the first.
#[derive(Debug, Default)]
pub struct ActionLog {
    pub count: usize,
    pub descriptions: Vec<String>,
}

impl ActionLog {
    pub fn add(&mut self, what: impl ToString) {
        const ENOUGH: usize = 20;
        self.count += 1;
        if self.descriptions.len() < ENOUGH {
            self.descriptions.push(what.to_string());
        }
    }
}

impl Engine {
    pub fn new(
        options: Options,
        conf: NetConf,
        state: SavedState,
        remembered: Vec<lease::Lease>,
        shared: Arc<SharedState>,
    ) -> Result<Self, keelson_netkit::Error> {
        let mut route = Socket::route()?;
        let macs = machine::settle_macs(&mut route, &conf, &state)?;
        let netfilter = Socket::netfilter()?;
        let netfilter_port = netfilter.port()?;
        {
            let mut network = shared.network();
            network.summary.leases = source_name(&options.leases);
            let remembered = remembered.into_iter().map(|lease| (lease.holder.clone(), Ok(lease)));
            network.leases.apply(lease::LeaseUpdate::Snapshot(remembered.collect()));
        }
        let mut engine = Engine {
            checksum_offload: !machine::needs_checksums_in_software(&machine::kernel_release()),
            options,
            conf,
            macs,
            netlink: Netlink { route, netfilter, netfilter_port },
            path: None,
            state,
            shared,
            links: None,
            filtered_lengths: None,
            unsaved: false,
        };
        engine.state.mac4 = Some(engine.macs.0.to_string());
        engine.state.mac6 = Some(engine.macs.1.to_string());
        Ok(engine)
    }

    pub fn check_every(&self) -> std::time::Duration {
        self.options.check_every
    }

    pub fn networks(&self) -> Vec<IpNetwork> {
        self.conf.networks().collect()
    }

    pub fn path(&self) -> Option<&udp::Path> {
        self.path.as_ref().map(|running| &running.path)
    }

    fn vni(&self) -> Option<u32> {
        match &self.conf.backend {
            Backend::Vxlan(vxlan) => Some(vxlan.vni),
            _ => None,
        }
    }

    /// From now on checksums are computed before packets enter the tunnel.
    pub fn disable_checksum_offload(&mut self) {
        self.checksum_offload = false;
    }

    /// Whether a change in the kernel is a reason for a full reconcile.
    pub fn needs_reconcile(&self, change: &Change) -> bool {
        let Some(links) = &self.links else { return true };
        let network = self.shared.network();
        let Some(setup) = &network.setup else { return true };
        let far: Vec<IpAddr> = underlay::far().chain(self.options.interface.towards).collect();
        let filter = ChangeFilter {
            setup,
            links,
            leases: &network.leases,
            fallback_peers: &network.fallback_peers,
            far: &far,
            tables: &[firewall::TABLE.name, peer_filter::TABLE.name],
            port: self.netlink.netfilter_port,
        };
        filter.needs_reconcile(change)
    }

    fn own(&self, underlay: &Underlay, public4: Option<IpAddr>, public6: Option<IpAddr>) -> OwnAttributes {
        let v4 = self.conf.v4.and(public4.or(underlay.v4));
        let v6 = self.conf.v6.and(public6.or(underlay.v6));
        let vtep = |mac: Mac| self.vni().map(|vni| Vtep { vni, mac });
        OwnAttributes {
            backend: self.conf.backend.name().to_owned(),
            public4: v4,
            public6: v6,
            vtep4: v4.and(vtep(self.macs.0)),
            vtep6: v6.and(vtep(self.macs.1)),
        }
    }

    /// Netlink messages sent so far, and bytes received.
    pub fn traffic(&self) -> (u64, u64) {
        let (route, netfilter) = (self.netlink.route.traffic(), self.netlink.netfilter.traffic());
        (route.0 + netfilter.0, route.1 + netfilter.1)
    }

    /// Whether peers changed since they were saved.
    pub fn has_unsaved(&self) -> bool {
        self.unsaved
    }

    /// Saves what is needed after a reboot.
    pub fn save(&mut self) {
        let leases: Vec<lease::Lease> = self.shared.network().leases.readable().collect();
        match self.state.save(&self.options.files.state_dir, leases.iter()) {
            Ok(()) => self.unsaved = false,
            Err(error) => tracing::warn!(%error, "cannot save the state that is needed after a reboot"),
        }
    }

    /// Writes the files that other programs wait for.
    pub fn write_files(&self, report: &ReconcileReport) -> Result<(), files::WriteError> {
        let env = files::subnet_env(
            &self.networks(),
            &report.subnets,
            report.mtu,
            self.options.firewall.masquerade,
        );
        files::replace(&self.options.files.subnet_file, env.as_bytes(), 0o644)?;
        if let Some(path) = &self.options.files.cni_conf {
            files::replace(path, files::cni_conflist(&report.subnets, report.mtu).as_bytes(), 0o644)?;
        }
        Ok(())
    }

    /// Describes the change, if the file of the network configuration differs from the one in force.
    fn config_change(&self) -> Option<String> {
        let path = match self.options.leases {
            LeaseSource::Etcd(_) => return None,
            _ => &self.options.net_config,
        };
        // A missing or half written file is no change.
        let text = std::fs::read_to_string(path).ok()?;
        self.conf.differs_from(&text, self.options.backend.as_deref(), &path.display().to_string())
    }
}

/// The name of the lease source.
fn source_name(leases: &LeaseSource) -> &'static str {
    match leases {
        LeaseSource::Kube(_) => "kubernetes",
        LeaseSource::Etcd(_) => "etcd",
        LeaseSource::Alone => "none",
    }
}
