//! The loop: a look at everything when there is reason to, only what belongs to a lease when just that changed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::board::Board;
use crate::engine::{Engine, Followed, Round};
use crate::lease::{News, Own};
use crate::monitor::Changes;
use crate::prober::{Prober, Ways};
use crate::run::{Hooks, RETRY, RunError};
use crate::source::{Inbox, View};

/// Changes that come in a crowd are looked at once.
const SETTLE: Duration = Duration::from_millis(100);
/// Peers are written to disk this soon after they changed ...
const SAVE_SOON: Duration = Duration::from_millis(200);
/// ... but so seldom that writing them all costs the same small amount over time, however many there are.
const SAVE_PAUSE_PER_PEER: Duration = Duration::from_millis(10);
/// How long after something was done memory is given back, so that a crowd is done with by then.
const REST: Duration = Duration::from_secs(5);

pub struct Daemon {
    /// Away while a thread works with it.
    engine: Option<Engine>,
    changes: Changes,
    inbox: Inbox,
    own: watch::Sender<Option<Own>>,
    board: Arc<Board>,
    prober: Prober,
    ready: Option<Box<dyn FnOnce() + Send>>,
    give_back: fn(),
    view: View,
    ways: Ways,
    complaints: Vec<String>,
    /// When to look again, whatever happens or does not happen until then.
    look_at: Instant,
    saved: Instant,
    save_at: Option<Instant>,
    rest_at: Option<Instant>,
}

/// Why something is to be done.
enum Reason {
    /// A source has something to tell.
    Mail,
    /// Somebody changed something of ours.
    Touched,
    /// Probes found that some packets should go another way.
    Ways,
    /// It is time to see whether a change was missed.
    Time,
}

impl Daemon {
    pub fn new(
        engine: Engine,
        prober: Prober,
        changes: Changes,
        inbox: Inbox,
        own: watch::Sender<Option<Own>>,
        board: Arc<Board>,
        hooks: Hooks,
    ) -> Self {
        Daemon {
            engine: Some(engine),
            prober,
            changes,
            inbox,
            own,
            board,
            ready: Some(hooks.ready),
            give_back: hooks.give_back,
            view: View::default(),
            ways: Ways::default(),
            complaints: Vec::new(),
            look_at: Instant::now(),
            saved: Instant::now(),
            save_at: None,
            rest_at: Some(Instant::now() + REST),
        }
    }

    pub async fn go_round(&mut self) -> Result<(), RunError> {
        let (view, news) = self.inbox.take();
        self.view = view;
        self.look(news, true).await?;
        loop {
            let reason = self.wait().await?;
            let (view, news) = self.inbox.take();
            let ways = self.board.book().ways();
            let before = std::mem::replace(&mut self.view, view);
            let here = |view: &View| (view.subnets.clone(), view.overwrite4, view.overwrite6, view.heard);
            let provoked = here(&self.view) != here(&before)
                || ways.checksums_are_damaged != self.ways.checksums_are_damaged;
            let news = news.filter(|news| self.board.picture().roll.is_new(news));
            let heard = news.is_some() || ways.fallen != self.ways.fallen;
            self.ways = ways;
            let touched = matches!(reason, Reason::Touched | Reason::Time);
            let can_follow = self.engine.as_ref().is_some_and(Engine::can_follow);
            match provoked || touched || (heard && !can_follow) {
                true => self.look(news, provoked || heard).await?,
                false if heard => self.follow(news).await?,
                false => {}
            }
            self.rest_at.get_or_insert_with(|| Instant::now() + REST);
            self.tell();
        }
    }

    /// Returns when there is reason to do something. What is to be kept on disk is written meanwhile.
    async fn wait(&mut self) -> Result<Reason, RunError> {
        let at = self.look_at;
        loop {
            let Some(engine) = &self.engine else { return Ok(Reason::Time) };
            let (save, rest) = (due(self.save_at), due(self.rest_at));
            tokio::select! {
                () = self.inbox.changed() => return Ok(Reason::Mail),
                heard = self.changes.next(|change| engine.is_concerned_by(change)) => {
                    heard?;
                    tokio::time::sleep(SETTLE).await;
                    return Ok(Reason::Touched);
                }
                () = self.prober.news() => return Ok(Reason::Ways),
                () = tokio::time::sleep_until(at) => return Ok(Reason::Time),
                () = save => {
                    // Should it fail, the next attempt is not made at once.
                    (self.save_at, self.saved) = (None, Instant::now() + RETRY);
                    self.on_thread(Engine::save).await?;
                }
                () = rest => {
                    self.rest_at = None;
                    (self.give_back)();
                }
            }
        }
    }

    /// Writes what is not on disk yet, before the end.
    pub fn finish(&mut self) {
        if let Some(engine) = self.engine.as_mut().filter(|engine| engine.has_unsaved()) {
            engine.save();
        }
    }

    fn check_every(&self) -> Duration {
        self.engine.as_ref().map_or(RETRY, |engine| engine.check_every())
    }

    /// Has the engine do something that blocks.
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
            let mut picture = self.board.picture();
            picture.head.traffic = engine.traffic();
            u32::try_from(picture.roll.count()).unwrap_or(u32::MAX)
        };
        match engine.has_unsaved() {
            true => {
                let due = (Instant::now() + SAVE_SOON).max(self.saved + SAVE_PAUSE_PER_PEER * peers);
                self.save_at.get_or_insert(due);
            }
            false => (self.save_at, self.saved) = (None, Instant::now()),
        }
        self.engine = Some(engine);
        Ok(outcome)
    }

    /// One look at everything.
    async fn look(&mut self, news: Option<News>, provoked: bool) -> Result<(), RunError> {
        let (view, ways) = (self.view.clone(), self.ways.clone());
        let outcome = self
            .on_thread(move |engine| {
                if ways.checksums_are_damaged {
                    engine.distrust_checksum_offload();
                }
                let mut round = engine.look(&view, news, &ways.fallen)?;
                if round.whole
                    && let Err(error) = engine.write_files(&round)
                {
                    round.complaints.push(error.to_string());
                    round.whole = false;
                }
                Ok(round)
            })
            .await?;
        match outcome {
            Ok(round) => self.digest(round, provoked),
            Err(error) => {
                let error: crate::underlay::UnderlayError = error;
                self.look_at = Instant::now() + RETRY;
                self.complaints = vec![error.to_string()];
            }
        }
        self.tell();
        Ok(())
    }

    fn digest(&mut self, round: Round, provoked: bool) {
        self.own.send_if_modified(|now| {
            now.as_ref() != Some(&round.own) && {
                *now = Some(round.own.clone());
                true
            }
        });
        let mut repaired = false;
        if round.done.count > 0 {
            let (count, words) = (round.done.count, round.done.words.join("; "));
            repaired = !provoked && self.ready.is_none();
            match repaired {
                true => tracing::warn!(repaired = words, count, "put right what somebody changed"),
                false => tracing::info!(changes = count, "the network follows its leases"),
            }
            tracing::debug!(done = words, "done");
        }
        if round.whole
            && let Some(ready) = self.ready.take()
        {
            tracing::info!(subnets = ?round.subnets.iter().map(ToString::to_string).collect::<Vec<_>>(), mtu = round.mtu, interface = round.underlay.name, "ready");
            ready();
        }
        // What could not be done is tried again soon; a lease that is not there yet makes itself heard.
        let settled = round.whole || round.subnets.is_empty();
        self.look_at = Instant::now() + if settled { self.check_every() } else { RETRY };
        if round.whole {
            let networks = self.engine.as_ref().map(Engine::networks).unwrap_or_default();
            self.prober.answer_on(&round.subnets, &networks);
        }
        self.complaints = round.complaints;
        let mut picture = self.board.picture();
        let head = &mut picture.head;
        head.repairs += u64::from(repaired);
        head.ready |= self.ready.is_none();
        head.interface = round.underlay.name;
        head.public = round.own.public4.iter().chain(&round.own.public6).map(ToString::to_string).collect();
        head.counters = round.counters;
    }

    /// Only what belongs to leases that changed, or to peers whose way did.
    async fn follow(&mut self, news: Option<News>) -> Result<(), RunError> {
        let fallen = self.ways.fallen.clone();
        let Followed { done, lost } = self.on_thread(move |engine| engine.follow(news, &fallen)).await?;
        if done.count > 0 {
            tracing::info!(changes = done.count, "the network follows its leases");
            tracing::debug!(done = done.words.join("; "), "done");
        }
        match lost {
            None => Ok(()),
            Some(why) => {
                tracing::info!(why, "looking at everything");
                self.look(None, true).await
            }
        }
    }

    /// Brings what is told up to date with what was heard last.
    fn tell(&mut self) {
        let mut picture = self.board.picture();
        for problem in picture.roll.fresh_complaints() {
            tracing::warn!(problem, "overlay");
        }
        let told = [&self.view.trouble, &self.view.reconfigured].into_iter().flatten();
        let problems: Vec<String> = self.complaints.iter().chain(told).cloned().collect();
        // Each thing is said once, and again only when it comes back.
        for problem in problems.iter().filter(|problem| !picture.head.problems.contains(problem)) {
            tracing::warn!(problem, "overlay");
        }
        picture.head.heard = self.view.heard && self.view.trouble.is_none();
        picture.head.problems = problems;
        drop(picture);
        self.board.ring();
    }
}

/// Returns at that moment; never, where there is none.
async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
