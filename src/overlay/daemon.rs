//! The loop: a round whenever something changed, and a status that is true in between.

use std::collections::HashSet;
use std::time::Duration;

use keelson_netkit::IfIndex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::{Engine, Round};
use crate::lease::Own;
use crate::monitor::Changes;
use crate::prober::{Prober, Ways};
use crate::report;
use crate::run::{RETRY, RunError};
use crate::source::View;
use crate::status::Status;

/// Changes that come in a crowd are looked at once.
const SETTLE: Duration = Duration::from_millis(100);

pub struct Daemon {
    /// Away while a thread works with it.
    engine: Option<Engine>,
    changes: Changes,
    view: watch::Receiver<View>,
    own: watch::Sender<Option<Own>>,
    status: watch::Sender<Status>,
    prober: Prober,
    ready: Option<Box<dyn FnOnce() + Send>>,
    repairs: u64,
    complaints: Vec<String>,
    /// What the last round found, and what it went by.
    last: Option<(Round, View)>,
    ways: Ways,
}

impl Daemon {
    pub fn new(
        engine: Engine,
        prober: Prober,
        changes: Changes,
        view: watch::Receiver<View>,
        own: watch::Sender<Option<Own>>,
        status: watch::Sender<Status>,
        ready: Box<dyn FnOnce() + Send>,
    ) -> Self {
        Daemon {
            engine: Some(engine),
            prober,
            changes,
            view,
            own,
            status,
            ready: Some(ready),
            repairs: 0,
            complaints: Vec::new(),
            last: None,
            ways: Ways::default(),
        }
    }

    pub async fn go_round(mut self) -> Result<(), RunError> {
        let mut interfaces = HashSet::new();
        let mut provoked = true;
        loop {
            self.round(provoked).await?;
            let next = match &self.last {
                Some((round, _)) if round.whole || round.subnets.is_empty() => self.check_every(),
                _ => RETRY,
            };
            if let Some((round, _)) = &self.last {
                interfaces = round.interfaces.clone();
            }
            let at = Instant::now() + next;
            self.wait(&interfaces, at, &mut provoked).await?;
        }
    }

    /// Returns when there is reason to go round again. What probes learn is told meanwhile, and only what changes a way is
    /// such a reason.
    async fn wait(
        &mut self,
        interfaces: &HashSet<IfIndex>,
        at: Instant,
        provoked: &mut bool,
    ) -> Result<(), RunError> {
        loop {
            tokio::select! {
                changed = self.view.changed() => {
                    *provoked = true;
                    if changed.is_err() {
                        // Only when shutting down.
                        std::future::pending::<()>().await;
                    }
                    return Ok(());
                }
                heard = self.changes.next(interfaces) => {
                    *provoked = false;
                    heard?;
                    tokio::time::sleep(SETTLE).await;
                    return Ok(());
                }
                () = self.prober.news() => {
                    *provoked = true;
                    if self.prober.learned().ways() != self.ways {
                        return Ok(());
                    }
                    self.tell();
                }
                () = tokio::time::sleep_until(at) => {
                    *provoked = false;
                    return Ok(());
                }
            }
        }
    }

    fn check_every(&self) -> Duration {
        self.engine.as_ref().map_or(RETRY, |engine| engine.check_every())
    }

    /// One round in a thread of its own.
    async fn round(&mut self, provoked: bool) -> Result<(), RunError> {
        let Some(mut engine) = self.engine.take() else { return Ok(()) };
        let provoked = provoked || self.view.has_changed().unwrap_or(false);
        let view = self.view.borrow_and_update().clone();
        let (learned, heard) = (self.prober.learned(), view.clone());
        self.ways = learned.ways();
        let (engine, outcome) = tokio::task::spawn_blocking(move || {
            if learned.checksums_are_damaged {
                engine.distrust_checksum_offload();
            }
            let outcome = engine.round(&heard, &learned.fallen_back);
            let outcome = outcome.map(|mut round| {
                if round.whole
                    && let Err(error) = engine.write_files(&round)
                {
                    round.complaints.push(error.to_string());
                    round.whole = false;
                }
                round
            });
            (engine, outcome)
        })
        .await?;
        let round = match outcome {
            Ok(round) => round,
            Err(error) => {
                self.complain(vec![error.to_string()]);
                self.status.send_modify(|status| status.problems = vec![error.to_string()]);
                self.engine = Some(engine);
                self.last = None;
                return Ok(());
            }
        };
        self.own.send_if_modified(|now| {
            now.as_ref() != Some(&round.own) && {
                *now = Some(round.own.clone());
                true
            }
        });
        if !round.done.is_empty() {
            if provoked || self.ready.is_some() {
                tracing::info!(
                    changes = round.done.len(),
                    peers = round.peers.len(),
                    "the network follows its leases"
                );
            } else {
                self.repairs += 1;
                tracing::warn!(repaired = round.done.join("; "), "put right what somebody changed");
            }
            tracing::debug!(done = ?round.done, "done");
        }
        let mut complaints = round.complaints.clone();
        complaints.extend(view.trouble.clone());
        self.complain(complaints);
        if round.whole
            && let Some(ready) = self.ready.take()
        {
            tracing::info!(subnets = ?round.subnets.iter().map(ToString::to_string).collect::<Vec<_>>(), mtu = round.mtu, interface = round.underlay.name, "ready");
            ready();
        }
        self.prober.follow(&round, engine.vni());
        self.engine = Some(engine);
        self.last = Some((round, view));
        self.tell();
        Ok(())
    }

    /// Brings the status up to date with what was found last and what probes learned since.
    fn tell(&self) {
        let (Some(engine), Some((round, view))) = (&self.engine, &self.last) else { return };
        let complaints = self.complaints.clone();
        let mut told = report::status(engine, round, view, complaints, self.repairs, self.ready.is_none());
        for peer in &mut told.peers {
            self.prober.tell(peer, round);
        }
        self.status.send_if_modified(|now| {
            now != &told && {
                *now = told;
                true
            }
        });
    }

    /// Says each thing once, and again only when it comes back.
    fn complain(&mut self, complaints: Vec<String>) {
        for problem in complaints.iter().filter(|problem| !self.complaints.contains(problem)) {
            tracing::warn!(problem, "overlay");
        }
        self.complaints = complaints;
    }
}
