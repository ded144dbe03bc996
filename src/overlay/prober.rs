//! Probes the peers at a steady pace, keeps what was learned, and answers other hosts' probes.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use keelson_netkit::{IfName, IpNet};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::{Backend, NetConf};
use crate::engine::Round;
use crate::plan::{Carrier, TUN_NAME};
use crate::probe::{self, Record, Target, diagnose};
use crate::status::PeerStatus;

/// What looks wrong is looked at again after this, until it is clear.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// What the daemon wants probed, and what is known of whom.
pub struct Prober {
    targets: watch::Sender<Vec<(Target, Carrier)>>,
    learned: watch::Receiver<Learned>,
    asking: watch::Sender<Vec<IpNet>>,
    answering: Vec<(IpAddr, JoinHandle<()>)>,
    may_fall_back: bool,
    port: Option<u16>,
}

/// What all sweeps so far taught.
#[derive(Debug, Clone, Default)]
pub struct Learned {
    records: HashMap<String, Record>,
    pub fallen_back: BTreeSet<String>,
    pub checksums_are_damaged: bool,
}

/// The part of what was learned that changes how packets travel: who is reached by udp, and whether checksums are damaged.
pub type Ways = (BTreeSet<String>, bool);

impl Learned {
    pub fn ways(&self) -> Ways {
        (self.fallen_back.clone(), self.checksums_are_damaged)
    }
}

impl Prober {
    /// Starts the sweeps; with None nobody is probed, and others are answered still.
    pub fn start(conf: &NetConf, every: Option<Duration>) -> Self {
        let (targets, wanted) = watch::channel(Vec::new());
        let (sender, learned) = watch::channel(Learned::default());
        let (may_fall_back, port) = match &conf.backend {
            Backend::Vxlan(vxlan) => (vxlan.fallback_port.is_some(), Some(vxlan.port)),
            Backend::Udp { port } => (false, Some(*port)),
            _ => (false, None),
        };
        if let Some(every) = every {
            tokio::spawn(go_round(every, wanted, sender, may_fall_back, port));
        } else {
            // Kept open, so that waiting for news from it never ends.
            tokio::spawn(async move { sender.closed().await });
        }
        let asking = watch::channel(Vec::new()).0;
        Prober { targets, learned, asking, answering: Vec::new(), may_fall_back, port }
    }

    /// Returns when a sweep taught something.
    pub async fn news(&mut self) {
        if self.learned.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub fn learned(&mut self) -> Learned {
        self.learned.borrow_and_update().clone()
    }

    /// Follows what the engine found.
    pub fn follow(&mut self, round: &Round, vni: Option<u32>) {
        let peers = round.peers.iter().filter_map(|peer| {
            let place = peer.places().next()?;
            let carrier = *round.carriers.get(&peer.holder)?;
            let tunnel = vni.map(|vni| {
                if place.subnet.is_v4() { format!("flannel.{vni}") } else { format!("flannel-v6.{vni}") }
            });
            let direct = carrier == Carrier::Direct;
            let device = tunnel.filter(|_| !direct).and_then(|name| IfName::try_from(name.as_str()).ok());
            let target = Target {
                holder: peer.holder.clone(),
                overlay: if direct { place.public } else { place.subnet.addr },
                public: place.public,
                device: device.filter(|_| self.may_fall_back),
                fallback: match self.may_fall_back && !direct {
                    true => TUN_NAME.try_into().ok(),
                    false => None,
                },
                mtu: round.mtu,
            };
            Some((target, carrier))
        });
        let peers: Vec<_> = peers.collect();
        self.targets.send_replace(peers);
        let nets = round.peers.iter().flat_map(|peer| peer.subnets()).collect();
        self.asking.send_replace(nets);
        let own: Vec<IpAddr> = round.subnets.iter().map(|net| net.addr).collect();
        self.answering.retain(|(addr, task)| {
            let keep = own.contains(addr) && !task.is_finished();
            if !keep {
                task.abort();
            }
            keep
        });
        for addr in own {
            if round.whole
                && vni.is_some() | self.carries_udp(round)
                && !self.answering.iter().any(|(a, _)| *a == addr)
            {
                let asking = self.asking.subscribe();
                let task = tokio::spawn(async move {
                    if let Err(error) = probe::answer(addr, asking).await {
                        tracing::debug!(%addr, %error, "cannot answer probes");
                    }
                });
                self.answering.push((addr, task));
            }
        }
    }

    fn carries_udp(&self, round: &Round) -> bool {
        self.port.is_some() && round.own.backend == "udp"
    }

    /// Adds what is known of a peer to what is told of it.
    pub fn tell(&self, peer: &mut PeerStatus, round: &Round) {
        let learned = self.learned.borrow();
        let (Some(record), Some(carrier)) =
            (learned.records.get(&peer.holder), round.carriers.get(&peer.holder))
        else {
            return;
        };
        let Ok(public) = peer.public.parse() else { return };
        let latest = record.latest();
        (peer.loss, peer.rtt, peer.mtu) = (record.loss(), latest.small, latest.largest);
        if record.fallen_back {
            peer.problems.push(format!(
                "nothing comes back from {public} through the VXLAN tunnel, so udp carries its traffic: UDP port {} is \
                 probably filtered between the hosts",
                self.port.unwrap_or_default()
            ));
        } else if record.is_trouble() {
            peer.problems.extend(diagnose(latest, *carrier, public, self.port, round.mtu));
        }
    }
}

async fn go_round(
    every: Duration,
    mut targets: watch::Receiver<Vec<(Target, Carrier)>>,
    learned: watch::Sender<Learned>,
    may_fall_back: bool,
    port: Option<u16>,
) {
    let mut records: HashMap<String, Record> = HashMap::new();
    loop {
        let wanted = targets.borrow_and_update().clone();
        if wanted.is_empty() {
            if targets.changed().await.is_err() {
                return;
            }
            continue;
        }
        records.retain(|holder, _| wanted.iter().any(|(t, _)| t.holder == *holder));
        let batch: Vec<Target> = wanted.iter().map(|(target, _)| target.clone()).collect();
        match tokio::task::spawn_blocking(move || probe::sweep(&batch)).await {
            Ok(Ok(evidence)) => {
                for ((target, carrier), evidence) in wanted.iter().zip(evidence) {
                    let may = may_fall_back && *carrier != Carrier::Direct;
                    let wrong = diagnose(&evidence, *carrier, target.public, port, target.mtu).is_some();
                    let record = records.entry(target.holder.clone()).or_default();
                    record.take(evidence, may);
                    record.judge(wrong);
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "overlay"),
            Err(_) => return,
        }
        let news = Learned {
            fallen_back: records.iter().filter(|(_, r)| r.fallen_back).map(|(h, _)| h.clone()).collect(),
            checksums_are_damaged: records.values().any(Record::checksums_are_damaged),
            records: records.clone(),
        };
        if learned.send(news).is_err() {
            return;
        }
        let unclear = records.values().any(Record::is_suspect);
        tokio::time::sleep(if unclear { every.min(SECOND_LOOK) } else { every }).await;
    }
}
