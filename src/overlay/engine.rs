//! Brings leases and kernel together, over and over: what is known now, what should be, what is, and the difference.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use keelson_netkit::{IfIndex, IpNet, Mac, Socket, sysctl};
use keelson_overlay_udp as udp;

use crate::config::{Backend, LeaseSource, NetConf, Options};
use crate::files;
use crate::firewall::{self, Wanted};
use crate::guard;
use crate::kernel::{self, Outcome};
use crate::lease::{Lease, Measure, Own, Sifted, Vtep, sift};
use crate::machine;
use crate::plan::{Carrier, Desired, Situation, TUN_NAME, Unreachable, desired};
use crate::source::View;
use crate::state::State;
use crate::underlay::{self, Underlay, UnderlayError};

/// All that one look at the kernel needs. It blocks, so it is handed to a thread and back.
pub struct Engine {
    options: Options,
    conf: NetConf,
    macs: (Mac, Mac),
    socket: Socket,
    rules: Socket,
    path: Option<Served>,
    state: State,
    checksum_offload: bool,
    /// Who holds what, as of the last round.
    served: HashSet<(String, IpNet)>,
}

/// The udp data path, with what it was started for.
struct Served {
    path: udp::Path,
    listen: Vec<SocketAddr>,
    subnets: Vec<IpNet>,
}

/// What one round found and did.
#[derive(Debug)]
pub struct Round {
    pub underlay: Underlay,
    pub own: Own,
    pub subnets: Vec<IpNet>,
    pub mtu: u32,
    pub peers: Vec<Lease>,
    pub unreachable: Vec<Unreachable>,
    /// What could not be read, served or done, in words.
    pub complaints: Vec<String>,
    /// What had to be done, in words.
    pub done: Vec<String>,
    /// Whether all of it is in place.
    pub whole: bool,
    /// The interfaces whose changes matter.
    pub interfaces: HashSet<IfIndex>,
    pub counters: Vec<(String, u64)>,
    /// How each peer is reached, by its holder.
    pub carriers: HashMap<String, Carrier>,
}

impl Engine {
    pub fn new(options: Options, conf: NetConf, state: State) -> Result<Self, keelson_netkit::Error> {
        let mut socket = Socket::route()?;
        let macs = machine::settle_macs(&mut socket, &conf, &state)?;
        let rules = Socket::netfilter()?;
        let checksum_offload = !machine::needs_checksums_in_software(&machine::kernel_release());
        let served = state
            .peers()
            .iter()
            .flat_map(|p| p.subnets().map(|net| (p.holder.clone(), net)).collect::<Vec<_>>())
            .collect();
        let mut engine =
            Engine { options, conf, macs, socket, rules, path: None, state, checksum_offload, served };
        engine.state.mac4 = Some(engine.macs.0.to_string());
        engine.state.mac6 = Some(engine.macs.1.to_string());
        Ok(engine)
    }

    pub fn conf(&self) -> &NetConf {
        &self.conf
    }

    pub fn check_every(&self) -> std::time::Duration {
        self.options.check_every
    }

    pub fn vni(&self) -> Option<u32> {
        match &self.conf.backend {
            Backend::Vxlan(vxlan) => Some(vxlan.vni),
            _ => None,
        }
    }

    /// Where leases come from, by name.
    pub fn source_name(&self) -> &'static str {
        match self.options.leases {
            LeaseSource::Kube(_) => "kubernetes",
            LeaseSource::Etcd(_) => "etcd",
            LeaseSource::Alone => "none",
        }
    }

    pub fn path(&self) -> Option<&udp::Path> {
        self.path.as_ref().map(|served| &served.path)
    }

    /// From now on checksums are computed before packets enter the tunnel.
    pub fn distrust_checksum_offload(&mut self) {
        self.checksum_offload = false;
    }

    /// One look at everything. Without a lease only the interface is found, so that a lease can be asked for.
    pub fn round(&mut self, view: &View, fallen_back: &BTreeSet<String>) -> Result<Round, UnderlayError> {
        let families = (self.conf.v4.is_some(), self.conf.v6.is_some());
        let public4 = view.overwrite4.or(self.options.public_v4.map(IpAddr::V4));
        let public6 = view.overwrite6.or(self.options.public_v6.map(IpAddr::V6));
        let given: Vec<IpAddr> = public4.into_iter().chain(public6).collect();
        let underlay = underlay::choose(&mut self.socket, &self.options.interface, &given, families)?;
        let own = self.own(&underlay, public4, public6);
        let networks: Vec<IpNet> = self.conf.networks().collect();
        let remembered = self.state.subnets();
        let within = |net: &IpNet| networks.iter().any(|n| n.contains(net.addr) && n.prefix <= net.prefix);
        let mut complaints = view.complaints.clone();
        let mut subnets = if view.subnets.is_empty() { remembered } else { view.subnets.clone() };
        for net in subnets.iter().filter(|net| !within(net)) {
            complaints.push(format!(
                "this host's subnet {net} is not within the network {}: the pod range of the cluster and the network configuration must agree",
                networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ));
        }
        subnets.retain(within);
        let leases = if view.heard { view.leases.clone() } else { self.state.peers() };
        let addresses: Vec<IpAddr> =
            underlay.nets.iter().map(|net| net.addr).chain(given.iter().copied()).collect();
        let vni = self.vni();
        let measure = Measure {
            networks: &networks,
            own: &subnets,
            addresses: &addresses,
            backend: self.conf.backend.name(),
            vni,
            served: &self.served,
        };
        let Sifted { peers, complaints: sifted } = sift(leases, &measure);
        self.served = peers.iter().flat_map(|p| p.subnets().map(|net| (p.holder.clone(), net))).collect();
        complaints.extend(sifted);
        let backend = self.conf.backend.clone();
        let situation = Situation {
            backend: &backend,
            networks: networks.clone(),
            subnets: subnets.clone(),
            underlay: underlay.index,
            underlay_mtu: underlay.mtu,
            underlay_nets: underlay.nets.clone(),
            macs: self.macs,
            local4: underlay.v4,
            local6: underlay.v6,
            checksum_offload: self.checksum_offload,
            fallen_back,
        };
        let mtu = situation.mtu();
        let (mut wanted, unreachable) = desired(&situation, &peers);
        let carriers = peers
            .iter()
            .filter_map(|peer| {
                let place = peer.places().next()?;
                Some((peer.holder.clone(), situation.carrier(&peer.holder, place).ok()?))
            })
            .collect();
        let mut round = Round {
            carriers,
            interfaces: HashSet::from([underlay.index]),
            underlay,
            own,
            subnets,
            mtu,
            peers,
            unreachable,
            complaints,
            done: Vec::new(),
            whole: false,
            counters: Vec::new(),
        };
        if !round.subnets.is_empty() {
            self.carry_out(&mut round, &mut wanted);
            self.remember(view, &round, &wanted);
        }
        Ok(round)
    }

    fn own(&self, underlay: &Underlay, public4: Option<IpAddr>, public6: Option<IpAddr>) -> Own {
        let v4 = self.conf.v4.and(public4.or(underlay.v4));
        let v6 = self.conf.v6.and(public6.or(underlay.v6));
        let vtep = |mac: Mac| match &self.conf.backend {
            Backend::Vxlan(vxlan) => Some(Vtep { vni: vxlan.vni, mac }),
            _ => None,
        };
        Own {
            backend: self.conf.backend.name().to_owned(),
            public4: v4,
            public6: v6,
            vtep4: v4.and(vtep(self.macs.0)),
            vtep6: v6.and(vtep(self.macs.1)),
        }
    }

    fn carry_out(&mut self, round: &mut Round, wanted: &mut Desired) {
        let in_use: HashSet<&str> = wanted.devices.iter().map(|d| d.name.as_str()).collect();
        wanted.retired = self
            .state
            .devices
            .iter()
            .filter(|name| !in_use.contains(name.as_str()))
            .filter_map(|name| name.as_str().try_into().ok())
            .collect();
        if let Err(error) = self.forwarding() {
            round.complaints.push(error.to_string());
        }
        if let Err(error) = self.tend_path(round) {
            round.complaints.push(error);
        }
        match kernel::reconcile(&mut self.socket, wanted, &round.underlay.name) {
            Ok(Outcome { done, failed }) => {
                round.whole = failed.is_empty();
                round.done.extend(done);
                round.complaints.extend(failed);
            }
            Err(error) => round.complaints.push(error.to_string()),
        }
        let rules = Wanted::of(
            &wanted.networks,
            self.options.masquerade,
            self.options.random_ports,
            self.options.forward_rules,
        );
        match firewall::ensure(&mut self.rules, &rules) {
            Ok(true) => round.done.push("set the nf_tables rules".to_owned()),
            Ok(false) => {}
            Err(error) => {
                round.whole = false;
                round.complaints.push(error.to_string());
            }
        }
        self.guard(round);
        for device in &wanted.devices {
            if let Ok(Some(link)) = keelson_netkit::link::find(&mut self.socket, device.name.as_str()) {
                round.interfaces.insert(link.index);
            }
        }
    }

    /// Only hosts with a lease are heard, where the kernel does not see to that by itself.
    fn guard(&mut self, round: &mut Round) {
        let wanted = match &self.conf.backend {
            Backend::Vxlan(vxlan) if self.options.leased_only => Some((vxlan, round.peers.as_slice())),
            _ => None,
        };
        let guarded = wanted.is_some();
        match guard::ensure(&mut self.rules, wanted) {
            Ok(true) => round.done.push("set who is heard on the tunnel".to_owned()),
            Ok(false) => {}
            Err(error) => {
                round.whole = false;
                round.complaints.push(error.to_string());
            }
        }
        if guarded {
            round.counters.extend(guard::dropped(&mut self.rules).unwrap_or_default());
        }
    }

    fn forwarding(&self) -> Result<(), keelson_netkit::Error> {
        if self.conf.v4.is_some() {
            sysctl::ensure("net/ipv4/ip_forward", "1")?;
        }
        if self.conf.v6.is_some() {
            sysctl::ensure("net/ipv6/conf/all/forwarding", "1")?;
        }
        Ok(())
    }

    /// Starts the udp data path where it is needed, again when it gave up or the address moved, and tells it the peers.
    fn tend_path(&mut self, round: &mut Round) -> Result<(), String> {
        let port = match &self.conf.backend {
            Backend::Udp { port } => *port,
            Backend::Vxlan(vxlan) => match vxlan.fallback_port {
                Some(port) => port,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        let local = [self.conf.v4.and(round.underlay.v4), self.conf.v6.and(round.underlay.v6)];
        let listen: Vec<SocketAddr> = local.into_iter().flatten().map(|addr| (addr, port).into()).collect();
        let outdated = self.path.as_ref().and_then(|served| match served.path.failure() {
            Some(why) => Some(why),
            None if served.listen != listen => Some("this host's address changed".to_owned()),
            None if served.subnets != round.subnets => Some("this host's subnet changed".to_owned()),
            None => None,
        });
        if let Some(why) = outdated {
            round.done.push(format!("start the udp data path again: {why}"));
            self.path = None;
        }
        if self.path.is_none() {
            let subnets = round.subnets.clone();
            let device = TUN_NAME.try_into().map_err(|e: keelson_netkit::IfNameError| e.to_string())?;
            let config =
                udp::Config { device, listen: listen.clone(), subnets: subnets.clone(), queues: None };
            let path = udp::Path::start(&config).map_err(|e| e.to_string())?;
            self.path = Some(Served { path, listen, subnets });
        }
        let Some(path) = self.path() else { return Ok(()) };
        let mut peers = Vec::new();
        for peer in &round.peers {
            for place in peer.places() {
                peers.push(udp::Peer { endpoint: (place.public, port).into(), subnets: vec![place.subnet] });
            }
        }
        for conflict in path.peers().replace(peers) {
            round.complaints.push(format!(
                "{} claims {}, which {} holds: two hosts with one subnet",
                conflict.refused, conflict.subnet, conflict.holder
            ));
        }
        round.counters = path.counters().rows().map(|(name, n)| (name.to_owned(), n)).collect();
        Ok(())
    }

    /// Keeps what was heard. What is only remembered is not written again.
    fn remember(&mut self, view: &View, round: &Round, wanted: &Desired) {
        let mut devices: Vec<String> = wanted.devices.iter().map(|d| d.name.to_string()).collect();
        devices.dedup();
        if !round.whole {
            devices.extend(wanted.retired.iter().map(ToString::to_string));
        }
        self.state.devices = devices;
        if view.heard {
            self.state.subnets = round.subnets.iter().map(ToString::to_string).collect();
            self.state.published =
                round.own.public4.iter().chain(round.own.public6.iter()).map(ToString::to_string).collect();
            self.state.set_peers(&view.leases);
        }
        if let Err(error) = self.state.save(&self.options.state_dir) {
            tracing::warn!(%error, "cannot keep what is needed after a reboot");
        }
    }

    /// The files that others wait for.
    pub fn write_files(&self, round: &Round) -> Result<(), files::WriteError> {
        let networks: Vec<IpNet> = self.conf.networks().collect();
        let env = files::subnet_env(&networks, &round.subnets, round.mtu, self.options.masquerade);
        files::replace(&self.options.subnet_file, env.as_bytes(), 0o644)?;
        if let Some(path) = &self.options.cni_conf {
            files::replace(path, files::cni_conflist(&round.subnets, round.mtu).as_bytes(), 0o644)?;
        }
        Ok(())
    }
}
