//! Brings leases and kernel together: by a look at everything there is ([`look`]), and where only some leases changed, by
//! just what they need ([`follow`]).

mod follow;
mod look;
mod path;

pub use follow::Followed;

use std::net::IpAddr;
use std::sync::Arc;

use keelson_netkit::monitor::Change;
use keelson_netkit::{IpNet, Mac, Socket};
use keelson_overlay_udp as udp;

use crate::board::Board;
use crate::config::{Backend, LeaseSource, NetConf, Options};
use crate::files;
use crate::guard::{self, Lengths};
use crate::lease::{Own, Vtep};
use crate::machine;
use crate::plan::{Claim, Ground};
use crate::state::State;
use crate::underlay::{self, Underlay};
use crate::{firewall, lease};

/// All that a look at the kernel needs. It blocks, so it is handed to a thread and back.
pub struct Engine {
    options: Options,
    conf: NetConf,
    macs: (Mac, Mac),
    socket: Socket,
    rules: Socket,
    rules_port: u32,
    path: Option<path::Served>,
    state: State,
    checksum_offload: bool,
    board: Arc<Board>,
    /// What the last look found in the kernel; None where that was not whole, or is out of date.
    ground: Option<Ground>,
    /// What there are rules for; None where nobody is kept out.
    guarded: Option<Lengths>,
    /// Peers changed since they were written to disk.
    unsaved: bool,
}

/// What one look at everything found and did.
#[derive(Debug)]
pub struct Round {
    pub underlay: Underlay,
    pub own: Own,
    pub subnets: Vec<IpNet>,
    pub mtu: u32,
    /// What could not be read, served or done, in words.
    pub complaints: Vec<String>,
    pub done: Done,
    /// Whether all of it is in place.
    pub whole: bool,
    pub counters: Vec<(String, u64)>,
}

/// What had to be done, in words; of very much only the beginning.
#[derive(Debug, Default)]
pub struct Done {
    pub count: usize,
    pub words: Vec<String>,
}

impl Done {
    pub fn add(&mut self, what: impl ToString) {
        const ENOUGH: usize = 20;
        self.count += 1;
        if self.words.len() < ENOUGH {
            self.words.push(what.to_string());
        }
    }
}

impl Engine {
    pub fn new(
        options: Options,
        conf: NetConf,
        state: State,
        remembered: Vec<lease::Lease>,
        board: Arc<Board>,
    ) -> Result<Self, keelson_netkit::Error> {
        let mut socket = Socket::route()?;
        let macs = machine::settle_macs(&mut socket, &conf, &state)?;
        let rules = Socket::netfilter()?;
        let rules_port = rules.port()?;
        {
            let mut picture = board.picture();
            picture.head.leases = source_name(&options.leases);
            let remembered = remembered.into_iter().map(|lease| (lease.holder.clone(), Ok(lease)));
            picture.roll.take(lease::News::Whole(remembered.collect()));
        }
        let mut engine = Engine {
            checksum_offload: !machine::needs_checksums_in_software(&machine::kernel_release()),
            options,
            conf,
            macs,
            socket,
            rules,
            rules_port,
            path: None,
            state,
            board,
            ground: None,
            guarded: None,
            unsaved: false,
        };
        engine.state.mac4 = Some(engine.macs.0.to_string());
        engine.state.mac6 = Some(engine.macs.1.to_string());
        Ok(engine)
    }

    pub fn check_every(&self) -> std::time::Duration {
        self.options.check_every
    }

    pub fn networks(&self) -> Vec<IpNet> {
        self.conf.networks().collect()
    }

    pub fn path(&self) -> Option<&udp::Path> {
        self.path.as_ref().map(|served| &served.path)
    }

    fn vni(&self) -> Option<u32> {
        match &self.conf.backend {
            Backend::Vxlan(vxlan) => Some(vxlan.vni),
            _ => None,
        }
    }

    /// From now on checksums are computed before packets enter the tunnel.
    pub fn distrust_checksum_offload(&mut self) {
        self.checksum_offload = false;
    }

    /// Whether something that the kernel told of is a reason to look at everything.
    pub fn is_concerned_by(&self, change: &Change) -> bool {
        let Some(ground) = &self.ground else { return true };
        let picture = self.board.picture();
        let Some(situation) = &picture.situation else { return true };
        let far: Vec<IpAddr> = underlay::far().chain(self.options.interface.towards).collect();
        let claim = Claim {
            situation,
            ground,
            roll: &picture.roll,
            fallen: &picture.fallen,
            far: &far,
            tables: &[firewall::TABLE.name, guard::TABLE.name],
            port: self.rules_port,
        };
        claim.is_touched_by(change)
    }

    fn own(&self, underlay: &Underlay, public4: Option<IpAddr>, public6: Option<IpAddr>) -> Own {
        let v4 = self.conf.v4.and(public4.or(underlay.v4));
        let v6 = self.conf.v6.and(public6.or(underlay.v6));
        let vtep = |mac: Mac| self.vni().map(|vni| Vtep { vni, mac });
        Own {
            backend: self.conf.backend.name().to_owned(),
            public4: v4,
            public6: v6,
            vtep4: v4.and(vtep(self.macs.0)),
            vtep6: v6.and(vtep(self.macs.1)),
        }
    }

    /// How many messages the kernel was sent so far, and how many bytes came back.
    pub fn traffic(&self) -> (u64, u64) {
        let (links, rules) = (self.socket.traffic(), self.rules.traffic());
        (links.0 + rules.0, links.1 + rules.1)
    }

    /// Whether peers changed since they were written to disk.
    pub fn has_unsaved(&self) -> bool {
        self.unsaved
    }

    /// Writes what is needed after a reboot.
    pub fn save(&mut self) {
        let leases: Vec<lease::Lease> = self.board.picture().roll.readable().collect();
        match self.state.save(&self.options.state_dir, leases.iter()) {
            Ok(()) => self.unsaved = false,
            Err(error) => tracing::warn!(%error, "cannot keep what is needed after a reboot"),
        }
    }

    /// The files that others wait for.
    pub fn write_files(&self, round: &Round) -> Result<(), files::WriteError> {
        let env = files::subnet_env(&self.networks(), &round.subnets, round.mtu, self.options.masquerade);
        files::replace(&self.options.subnet_file, env.as_bytes(), 0o644)?;
        if let Some(path) = &self.options.cni_conf {
            files::replace(path, files::cni_conflist(&round.subnets, round.mtu).as_bytes(), 0o644)?;
        }
        Ok(())
    }

    /// What to say when the file that the network configuration was read from holds another one by now.
    fn reconfigured(&self) -> Option<String> {
        let path = match self.options.leases {
            LeaseSource::Etcd(_) => return None,
            _ => &self.options.net_config,
        };
        // One that is gone or half written is not another.
        let text = std::fs::read_to_string(path).ok()?;
        self.conf.differs_from(&text, self.options.backend.as_deref(), &path.display().to_string())
    }
}

/// Where leases come from, by name.
fn source_name(leases: &LeaseSource) -> &'static str {
    match leases {
        LeaseSource::Kube(_) => "kubernetes",
        LeaseSource::Etcd(_) => "etcd",
        LeaseSource::Alone => "none",
    }
}
