//! One look at everything: what is known now, what should be, what is, and the difference.

use std::collections::HashSet;
use std::net::IpAddr;

use keelson_netkit::{IpNet, sysctl};

use super::{Done, Engine, Round};
use crate::config::Backend;
use crate::firewall::{self, Wanted};
use crate::guard;
use crate::kernel::{self, Outcome};
use crate::lease::{Measure, News, Place};
use crate::plan::{Desired, Fallen, Ground, Situation, desired};
use crate::source::View;
use crate::underlay::{self, Underlay, UnderlayError};

impl Engine {
    /// Without a lease only the interface is found, so that a lease can be asked for.
    pub fn look(&mut self, view: &View, news: Option<News>, fallen: &Fallen) -> Result<Round, UnderlayError> {
        self.ground = None;
        let families = (self.conf.v4.is_some(), self.conf.v6.is_some());
        let public4 = view.overwrite4.or(self.options.public_v4.map(IpAddr::V4));
        let public6 = view.overwrite6.or(self.options.public_v6.map(IpAddr::V6));
        let given: Vec<IpAddr> = public4.into_iter().chain(public6).collect();
        let found = underlay::choose(&mut self.socket, &self.options.interface, &given, families);
        let underlay = match found {
            Ok(underlay) => underlay,
            Err(error) => {
                self.hear(news);
                return Err(error);
            }
        };
        let mut complaints: Vec<String> = self.reconfigured().into_iter().collect();
        let subnets = self.subnets(view, &mut complaints);
        let own = self.own(&underlay, public4, public6);
        let situation = self.situation(&underlay, subnets.clone());
        let addresses = underlay.nets.iter().map(|net| net.addr).chain(given).collect();
        let rearranged = self.measure(&situation, addresses, news, fallen);
        let mut round = Round {
            underlay,
            own,
            subnets,
            mtu: situation.mtu(),
            complaints,
            done: Done::default(),
            whole: false,
            counters: Vec::new(),
        };
        if !round.subnets.is_empty() {
            self.carry_out(&mut round, &situation, rearranged);
            self.remember(view, &round, &situation);
        }
        Ok(round)
    }

    /// This host's own subnets, as far as they are of use.
    fn subnets(&self, view: &View, complaints: &mut Vec<String>) -> Vec<IpNet> {
        let networks = self.networks();
        let within = |net: &IpNet| networks.iter().any(|n| n.contains(net.addr) && n.prefix <= net.prefix);
        let mut subnets = if view.subnets.is_empty() { self.state.subnets() } else { view.subnets.clone() };
        for net in subnets.iter().filter(|net| !within(net)) {
            complaints.push(format!(
                "this host's subnet {net} is not within the network {}: the pod range of the cluster and the network configuration must agree",
                networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ));
        }
        subnets.retain(within);
        subnets
    }

    fn situation(&self, underlay: &Underlay, subnets: Vec<IpNet>) -> Situation {
        Situation {
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

    /// Takes in what was heard, and measures leases by what this host is now; tells whether peers may have changed.
    fn measure(
        &mut self,
        situation: &Situation,
        addresses: Vec<IpAddr>,
        news: Option<News>,
        fallen: &Fallen,
    ) -> bool {
        let measure = Measure {
            networks: situation.networks.clone(),
            own: situation.subnets.clone(),
            addresses,
            macs: vec![self.macs.0, self.macs.1],
            backend: situation.backend.name().to_owned(),
            vni: self.vni(),
        };
        // Before the news: those that are remembered keep what they hold.
        let settled = self.board.picture().roll.settle(&measure);
        let heard = self.hear(news);
        let mut picture = self.board.picture();
        picture.situation = Some(situation.clone());
        picture.fallen.clone_from(fallen);
        picture.note_reach_of_all();
        settled || heard
    }

    /// Tells whether anything was new.
    fn hear(&mut self, news: Option<News>) -> bool {
        let Some(news) = news else { return false };
        let changes = self.board.picture().roll.take(news);
        let mut book = self.board.book();
        changes.iter().filter(|change| change.after.is_none()).for_each(|change| book.forget(&change.holder));
        self.unsaved |= !changes.is_empty();
        !changes.is_empty()
    }

    fn carry_out(&mut self, round: &mut Round, situation: &Situation, rearranged: bool) {
        let mut wanted = {
            let picture = self.board.picture();
            desired(situation, picture.roll.peers(), &picture.fallen)
        };
        let in_use: HashSet<&str> = wanted.devices.iter().map(|d| d.name.as_str()).collect();
        let retired = self.state.devices.iter().filter(|name| !in_use.contains(name.as_str()));
        wanted.retired = retired.filter_map(|name| name.as_str().try_into().ok()).collect();
        if let Err(error) = self.forwarding() {
            round.complaints.push(error.to_string());
        }
        if let Err(error) = self.tend_path(round, rearranged) {
            round.complaints.push(error);
        }
        match kernel::reconcile(&mut self.socket, &wanted, &round.underlay.name, &mut round.done) {
            Ok(Outcome { failed, observed }) => {
                round.whole = failed.is_empty();
                round.complaints.extend(failed);
                self.ground = Ground::of(situation, wanted.devices.iter().map(|d| d.role), &observed);
            }
            Err(error) => round.complaints.push(error.to_string()),
        }
        self.set_rules(round, &wanted);
        self.guard(round);
        if !round.whole {
            self.ground = None;
        }
    }

    fn set_rules(&mut self, round: &mut Round, wanted: &Desired) {
        let rules = Wanted::of(
            &wanted.networks,
            self.options.masquerade,
            self.options.random_ports,
            self.options.forward_rules,
        );
        match firewall::ensure(&mut self.rules, &rules) {
            Ok(true) => round.done.add("set the nf_tables rules"),
            Ok(false) => {}
            Err(error) => {
                round.whole = false;
                round.complaints.push(error.to_string());
            }
        }
    }

    /// Only hosts with a lease are heard, where the kernel does not see to that by itself.
    fn guard(&mut self, round: &mut Round) {
        self.guarded = None;
        let outcome = match &self.conf.backend {
            Backend::Vxlan(vxlan) if self.options.leased_only => {
                let places: Vec<Place> = {
                    let picture = self.board.picture();
                    picture.roll.peers().flat_map(|peer| [peer.v4, peer.v6]).flatten().collect()
                };
                let lengths = guard::lengths(&places);
                let outcome = guard::ensure(&mut self.rules, vxlan, &lengths, &places);
                self.guarded = Some(lengths);
                outcome
            }
            _ => guard::lift(&mut self.rules),
        };
        match outcome {
            Ok(true) => round.done.add("set who is heard on the tunnel"),
            Ok(false) => {}
            Err(error) => {
                round.whole = false;
                round.complaints.push(error.to_string());
            }
        }
        if self.guarded.is_some() {
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

    /// Keeps what was heard. What concerns this host is written at once; peers alone may wait, see [`Engine::save`].
    fn remember(&mut self, view: &View, round: &Round, situation: &Situation) {
        let before = self.state.clone();
        let wanted = desired(situation, std::iter::empty(), &Fallen::new());
        let mut devices: Vec<String> = wanted.devices.iter().map(|d| d.name.to_string()).collect();
        devices.dedup();
        if !round.whole {
            devices.extend(
                self.state.devices.iter().filter(|name| !devices.contains(name)).cloned().collect::<Vec<_>>(),
            );
        }
        self.state.devices = devices;
        if view.heard {
            self.state.subnets = round.subnets.iter().map(ToString::to_string).collect();
            self.state.published =
                round.own.public4.iter().chain(round.own.public6.iter()).map(ToString::to_string).collect();
        }
        if self.state != before || !self.options.state_dir.join("state.json").exists() {
            self.save();
        }
    }
}
