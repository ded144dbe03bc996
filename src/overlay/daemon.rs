//! The main loop. When only leases changed, it applies just those changes; for any other reason it reconciles everything.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::{AppliedLeaseChanges, Engine, ReconcileReport};
use crate::kernel_changes::KernelChanges;
use crate::lease::{LeaseUpdate, OwnAttributes};
use crate::probe_results::PathDecisions;
use crate::prober::PeerProber;
use crate::run::{Hooks, RETRY, RunError};
use crate::shared_state::SharedState;
use crate::source::{SourceReceiver, SourceStatus};

/// Kernel changes within this time are handled together.
const SETTLE: Duration = Duration::from_millis(100);
/// Peers are written to disk this soon after they changed ...
const SAVE_SOON: Duration = Duration::from_millis(200);
/// ... but so seldom that writing them all costs the same small amount over time, however many there are.
const SAVE_PAUSE_PER_PEER: Duration = Duration::from_millis(10);
/// Unused memory is returned to the system this long after the last activity, so that a burst is over by then.
const TRIM_DELAY: Duration = Duration::from_secs(5);

pub struct Daemon {
    /// None while a blocking thread has it.
    engine: Option<Engine>,
    changes: KernelChanges,
    receiver: SourceReceiver,
    own: watch::Sender<Option<OwnAttributes>>,
    shared: Arc<SharedState>,
    prober: PeerProber,
    ready: Option<Box<dyn FnOnce() + Send>>,
    give_back: fn(),
    source: SourceStatus,
    decisions: PathDecisions,
    problems: Vec<String>,
    timers: Timers,
}

/// When the loop does what nothing else triggers.
struct Timers {
    /// The next full reconcile, in case a notification was missed.
    reconcile_at: Instant,
    /// When state was last written to disk, and when it is written next.
    saved: Instant,
    save_at: Option<Instant>,
    trim_at: Option<Instant>,
}

/// Why the loop woke up.
enum WakeReason {
    /// The lease source reported something.
    SourceChanged,
    /// Another program changed something of ours in the kernel.
    KernelChanged,
    /// Probe results change how some peers are reached.
    PathsChanged,
    /// The regular check is due.
    CheckDue,
}

impl Daemon {
    pub fn new(
        engine: Engine,
        prober: PeerProber,
        changes: KernelChanges,
        receiver: SourceReceiver,
        own: watch::Sender<Option<OwnAttributes>>,
        shared: Arc<SharedState>,
        hooks: Hooks,
    ) -> Self {
        Daemon {
            engine: Some(engine),
            prober,
            changes,
            receiver,
            own,
            shared,
            ready: Some(hooks.ready),
            give_back: hooks.give_back,
            source: SourceStatus::default(),
            decisions: PathDecisions::default(),
            problems: Vec::new(),
            timers: Timers {
                reconcile_at: Instant::now(),
                saved: Instant::now(),
                save_at: None,
                trim_at: Some(Instant::now() + TRIM_DELAY),
            },
        }
    }

    pub async fn run(&mut self) -> Result<(), RunError> {
        let (source, update) = self.receiver.take();
        self.source = source;
        self.full_reconcile(update, true).await?;
        loop {
            let reason = self.wait().await?;
            let (source, update) = self.receiver.take();
            let decisions = self.shared.results().decisions();
            let before = std::mem::replace(&mut self.source, source);
            let local = |source: &SourceStatus| {
                (source.subnets.clone(), source.overwrite4, source.overwrite6, source.synced)
            };
            let provoked = local(&self.source) != local(&before)
                || decisions.checksums_are_damaged != self.decisions.checksums_are_damaged;
            let update = update.filter(|update| self.shared.network().leases.changes_anything(update));
            let peers_changed = update.is_some() || decisions.fallback_peers != self.decisions.fallback_peers;
            self.decisions = decisions;
            let check_kernel = matches!(reason, WakeReason::KernelChanged | WakeReason::CheckDue);
            let is_reconciled = self.engine.as_ref().is_some_and(Engine::is_reconciled);
            match provoked || check_kernel || (peers_changed && !is_reconciled) {
                true => self.full_reconcile(update, provoked || peers_changed).await?,
                false if peers_changed => self.apply_lease_changes(update).await?,
                false => {}
            }
            self.timers.trim_at.get_or_insert_with(|| Instant::now() + TRIM_DELAY);
            self.publish_status();
        }
    }

    /// Waits for a reason to act. Meanwhile it writes pending state to disk.
    async fn wait(&mut self) -> Result<WakeReason, RunError> {
        let at = self.timers.reconcile_at;
        loop {
            let Some(engine) = &self.engine else { return Ok(WakeReason::CheckDue) };
            let (save, trim) = (due(self.timers.save_at), due(self.timers.trim_at));
            tokio::select! {
                () = self.receiver.changed() => return Ok(WakeReason::SourceChanged),
                changed = self.changes.next(|change| engine.needs_reconcile(change)) => {
                    changed?;
                    tokio::time::sleep(SETTLE).await;
                    return Ok(WakeReason::KernelChanged);
                }
                () = self.prober.changed() => return Ok(WakeReason::PathsChanged),
                () = tokio::time::sleep_until(at) => return Ok(WakeReason::CheckDue),
                () = save => {
                    // If it fails, wait before the next attempt.
                    (self.timers.save_at, self.timers.saved) = (None, Instant::now() + RETRY);
                    self.on_thread(Engine::save).await?;
                }
                () = trim => {
                    self.timers.trim_at = None;
                    (self.give_back)();
                }
            }
        }
    }

    /// Writes unsaved state to disk before the process ends.
    pub fn flush(&mut self) {
        if let Some(engine) = self.engine.as_mut().filter(|engine| engine.has_unsaved()) {
            engine.save();
        }
    }

    fn check_every(&self) -> Duration {
        self.engine.as_ref().map_or(RETRY, |engine| engine.check_every())
    }

    /// Runs blocking work of the engine on a thread.
    async fn on_thread<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, RunError> {
        let mut engine = self.engine.take().ok_or(RunError::Busy)?;
        let (engine, outcome) = tokio::task::spawn_blocking(move || {
            let outcome = work(&mut engine);
            (engine, outcome)
        })
        .await?;
        let peers = {
            let mut network = self.shared.network();
            network.summary.traffic = engine.traffic();
            u32::try_from(network.leases.count()).unwrap_or(u32::MAX)
        };
        match engine.has_unsaved() {
            true => {
                let due = (Instant::now() + SAVE_SOON).max(self.timers.saved + SAVE_PAUSE_PER_PEER * peers);
                self.timers.save_at.get_or_insert(due);
            }
            false => (self.timers.save_at, self.timers.saved) = (None, Instant::now()),
        }
        self.engine = Some(engine);
        Ok(outcome)
    }

    /// Observes and repairs everything.
    async fn full_reconcile(&mut self, update: Option<LeaseUpdate>, provoked: bool) -> Result<(), RunError> {
        let (source, decisions) = (self.source.clone(), self.decisions.clone());
        let outcome = self
            .on_thread(move |engine| {
                if decisions.checksums_are_damaged {
                    engine.disable_checksum_offload();
                }
                let mut report = engine.full_reconcile(&source, update, &decisions.fallback_peers)?;
                if report.complete
                    && let Err(error) = engine.write_files(&report)
                {
                    report.problems.push(error.to_string());
                    report.complete = false;
                }
                Ok(report)
            })
            .await?;
        match outcome {
            Ok(report) => self.apply_report(report, provoked),
            Err(error) => {
                let error: crate::underlay::UnderlayError = error;
                self.timers.reconcile_at = Instant::now() + RETRY;
                self.problems = vec![error.to_string()];
            }
        }
        self.publish_status();
        Ok(())
    }

    fn apply_report(&mut self, report: ReconcileReport, provoked: bool) {
        self.own.send_if_modified(|now| {
            now.as_ref() != Some(&report.own) && {
                *now = Some(report.own.clone());
                true
            }
        });
        let mut repaired = false;
        if report.performed.count > 0 {
            let (count, words) = (report.performed.count, report.performed.descriptions.join("; "));
            repaired = !provoked && self.ready.is_none();
            match repaired {
                true => tracing::warn!(repaired = words, count, "put right what somebody changed"),
                false => tracing::info!(changes = count, "the network follows its leases"),
            }
            tracing::debug!(done = words, "done");
        }
        if report.complete
            && let Some(ready) = self.ready.take()
        {
            tracing::info!(subnets = ?report.subnets.iter().map(ToString::to_string).collect::<Vec<_>>(), mtu = report.mtu, interface = report.underlay.name, "ready");
            ready();
        }
        // Failures are retried soon. A missing lease wakes the loop by itself when it arrives.
        let settled = report.complete || report.subnets.is_empty();
        self.timers.reconcile_at = Instant::now() + if settled { self.check_every() } else { RETRY };
        if report.complete {
            let networks = self.engine.as_ref().map(Engine::networks).unwrap_or_default();
            self.prober.answer_on(&report.subnets, &networks);
        }
        self.problems = report.problems;
        let mut network = self.shared.network();
        let summary = &mut network.summary;
        summary.repairs += u64::from(repaired);
        summary.ready |= self.ready.is_none();
        summary.interface = report.underlay.name;
        summary.public =
            report.own.public4.iter().chain(&report.own.public6).map(ToString::to_string).collect();
        summary.counters = report.counters;
    }

    /// Applies only what belongs to changed leases, or to peers whose path changed.
    async fn apply_lease_changes(&mut self, update: Option<LeaseUpdate>) -> Result<(), RunError> {
        let fallback_peers = self.decisions.fallback_peers.clone();
        let AppliedLeaseChanges { performed, full_reconcile_reason } =
            self.on_thread(move |engine| engine.apply_lease_changes(update, &fallback_peers)).await?;
        if performed.count > 0 {
            tracing::info!(changes = performed.count, "the network follows its leases");
            tracing::debug!(done = performed.descriptions.join("; "), "done");
        }
        match full_reconcile_reason {
            None => Ok(()),
            Some(why) => {
                tracing::info!(why, "reconciling everything");
                self.full_reconcile(None, true).await
            }
        }
    }

    /// Updates the status with the latest results.
    fn publish_status(&mut self) {
        let mut network = self.shared.network();
        for problem in network.leases.new_rejections() {
            tracing::warn!(problem, "overlay");
        }
        let reported = [&self.source.problem, &self.source.reconfigured].into_iter().flatten();
        let problems: Vec<String> = self.problems.iter().chain(reported).cloned().collect();
        // A problem is logged once, and again only after it went away and came back.
        for problem in problems.iter().filter(|problem| !network.summary.problems.contains(problem)) {
            tracing::warn!(problem, "overlay");
        }
        network.summary.synced = self.source.synced && self.source.problem.is_none();
        network.summary.problems = problems;
        drop(network);
        self.shared.notify_changed();
    }
}

/// Waits until `at`; forever, where there is none.
async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
