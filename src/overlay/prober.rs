//! Probes the peers at a steady pace, keeps what was learned, and answers other hosts' probes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keelson_netkit::IpNet;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::board::Board;
use crate::config::{Backend, NetConf};
use crate::lease::Place;
use crate::plan::{Carrier, Fallen};
use crate::probe::{self, Evidence, Record, Schedule, Target, diagnose};

/// What all probes so far taught.
#[derive(Debug, Default)]
pub struct Book {
    /// By holder and family (true is IPv4).
    records: BTreeMap<(Arc<str>, bool), Record>,
    troubled: BTreeSet<Arc<str>>,
    fallen: Fallen,
    checksums_are_damaged: bool,
    may_fall_back: bool,
    port: Option<u16>,
}

/// The part of what was learned that changes how packets travel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ways {
    pub fallen: Fallen,
    pub checksums_are_damaged: bool,
}

impl Book {
    pub fn ways(&self) -> Ways {
        Ways { fallen: self.fallen.clone(), checksums_are_damaged: self.checksums_are_damaged }
    }

    pub fn forget(&mut self, holder: &Arc<str>) {
        for v4 in [true, false] {
            self.records.remove(&(holder.clone(), v4));
            self.fallen.remove(&(holder.clone(), v4));
        }
        self.troubled.remove(holder);
    }

    pub fn record(&self, holder: &Arc<str>, v4: bool) -> Option<&Record> {
        self.records.get(&(holder.clone(), v4))
    }

    /// Those that something is wrong with.
    pub fn troubled(&self) -> &BTreeSet<Arc<str>> {
        &self.troubled
    }

    /// What is wrong with one place of a peer.
    pub fn problem(&self, holder: &Arc<str>, place: &Place, carrier: Carrier, mtu: u32) -> Option<String> {
        let record = self.record(holder, place.subnet.is_v4())?;
        let public = place.public;
        if record.fallen_back {
            return Some(format!(
                "nothing comes back from {public} through the VXLAN tunnel, so udp carries its traffic: UDP port {} is \
                 probably filtered between the hosts",
                self.port.unwrap_or_default()
            ));
        }
        record.is_trouble().then(|| diagnose(record.latest(), carrier, public, self.port, mtu)).flatten()
    }

    /// Takes in what one probe taught; tells whether it is clear what to make of it.
    fn take(&mut self, target: &Target, evidence: Evidence) -> bool {
        let v4 = target.overlay.is_ipv4();
        let may = self.may_fall_back && target.carrier != Carrier::Direct;
        let wrong = diagnose(&evidence, target.carrier, target.public, self.port, target.mtu).is_some();
        let key = (target.holder.clone(), v4);
        let record = self.records.entry(key.clone()).or_default();
        record.take(evidence, may);
        record.judge(wrong);
        let (fallen_back, clear) = (record.fallen_back, !record.is_suspect());
        self.checksums_are_damaged |= record.checksums_are_damaged();
        match fallen_back {
            true => self.fallen.insert(key),
            false => self.fallen.remove(&key),
        };
        let in_trouble = |r: &Record| r.is_trouble() || r.fallen_back;
        let troubled =
            [true, false].into_iter().any(|v4| self.record(&target.holder, v4).is_some_and(in_trouble));
        match troubled {
            true => self.troubled.insert(target.holder.clone()),
            false => self.troubled.remove(&target.holder),
        };
        clear
    }
}

/// The daemon's end.
pub struct Prober {
    news: Arc<Notify>,
    answering: Vec<(IpAddr, JoinHandle<()>)>,
    /// Whether packets can be answered through a tunnel at all.
    tunnels: bool,
}

impl Prober {
    /// Starts the probes; with None nobody is probed, and others are answered still.
    pub fn start(conf: &NetConf, every: Option<Duration>, board: &Arc<Board>) -> Self {
        let (may_fall_back, port) = match &conf.backend {
            Backend::Vxlan(vxlan) => (vxlan.fallback_port.is_some(), Some(vxlan.port)),
            Backend::Udp { port } => (false, Some(*port)),
            _ => (false, None),
        };
        {
            let mut book = board.book();
            (book.may_fall_back, book.port) = (may_fall_back, port);
        }
        let news = Arc::new(Notify::new());
        if let Some(every) = every {
            tokio::spawn(go_round(every, board.clone(), news.clone()));
        }
        Prober { news, answering: Vec::new(), tunnels: port.is_some() }
    }

    /// Returns when probes taught something that changes how packets should travel.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// Answers on these addresses from now on.
    pub fn answer_on(&mut self, own: &[IpNet], networks: &[IpNet]) {
        let own: Vec<IpAddr> = own.iter().map(|net| net.addr).filter(|_| self.tunnels).collect();
        self.answering.retain(|(addr, task)| {
            let keep = own.contains(addr) && !task.is_finished();
            if !keep {
                task.abort();
            }
            keep
        });
        for addr in own {
            if !self.answering.iter().any(|(a, _)| *a == addr) {
                let networks = networks.to_vec();
                let task = tokio::spawn(async move {
                    if let Err(error) = probe::answer(addr, networks).await {
                        tracing::debug!(%addr, %error, "cannot answer probes");
                    }
                });
                self.answering.push((addr, task));
            }
        }
    }
}

async fn go_round(every: Duration, board: Arc<Board>, news: Arc<Notify>) {
    let mut schedule: Schedule<Arc<str>> = Schedule::new(every);
    loop {
        let (batch, next) =
            schedule.next(Instant::now(), |after, room| board.picture().roll.after(after, room));
        let targets: Vec<Target> = {
            let picture = board.picture();
            batch.iter().flat_map(|holder| picture.targets(holder)).collect()
        };
        if !targets.is_empty() {
            let swept =
                tokio::task::spawn_blocking(move || probe::sweep(&targets).map(|e| (targets, e))).await;
            match swept {
                Ok(Ok((targets, evidence))) => learn(&board, &mut schedule, &news, &targets, evidence),
                Ok(Err(error)) => tracing::warn!(%error, "overlay"),
                Err(_) => return,
            }
        }
        tokio::time::sleep_until(next.into()).await;
    }
}

fn learn(
    board: &Board,
    schedule: &mut Schedule<Arc<str>>,
    news: &Notify,
    targets: &[Target],
    evidence: Vec<Evidence>,
) {
    let now = Instant::now();
    let mut book = board.book();
    let before = (book.ways(), book.troubled.len());
    for (target, evidence) in targets.iter().zip(evidence) {
        // One that left meanwhile is not to be remembered.
        if board.picture().roll.peer(&target.holder).is_none() {
            continue;
        }
        if !book.take(target, evidence) {
            schedule.look_again(target.holder.clone(), now);
        }
    }
    let after = (book.ways(), book.troubled.len());
    drop(book);
    if before.0 != after.0 {
        news.notify_one();
    }
    if before.1 != after.1 {
        board.ring();
    }
}
