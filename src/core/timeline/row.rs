//! One step of a pod, with all its tries.

use std::time::Duration;

use super::Moment;
use super::step::{Place, Stage, Step};

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub stage: Stage,
    pub step: Step,
    pub place: Place,
    /// An index into the names of containers; `None` for a step of the whole pod.
    pub container: Option<u16>,
    /// When it began for the first time.
    pub began: Moment,
    /// When the last try began.
    pub tried: Moment,
    pub state: State,
    /// How long all tries that have ended took together.
    pub busy: Duration,
    pub failed: u32,
    pub note: Note,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Ended(Ending, Moment),
    /// When it was done is known, from the runtime or the apiserver, but not how long it took.
    Untimed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Done,
    Failed,
    /// For something more urgent, or because what it was for has ended.
    GivenUp,
}

/// What there is to say of a step beside its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Note {
    #[default]
    None,
    /// The image was on this machine.
    Present,
    /// It was pulled: so many bytes. `waiting` is the time that went by for other pulls of the same image.
    Pulled { bytes: u64, waiting: Duration },
    /// So many entries of a volume were given to the pod's fsGroup.
    Owned { entries: u64 },
    /// It began at a time that the API keeps in whole seconds: it took up to a second less.
    AtMost,
    /// Began before this agent did.
    BeforeAgent,
}

impl Row {
    pub fn new(stage: Stage, step: Step, container: Option<u16>, place: Place, now: Moment) -> Self {
        Self {
            stage,
            step,
            place,
            container,
            began: now,
            tried: now,
            state: State::Open,
            busy: Duration::ZERO,
            failed: 0,
            note: Note::None,
        }
    }

    pub fn is(&self, stage: Stage, step: Step, container: Option<u16>) -> bool {
        (self.stage, self.step, self.container) == (stage, step, container)
    }

    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Ended(Ending::Done, _) | State::Untimed)
    }

    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub fn again(&mut self, place: Place, now: Moment) {
        (self.place, self.tried, self.state) = (place, now, State::Open);
    }

    pub fn end(&mut self, how: Ending, now: Moment) {
        self.busy += now.since(self.tried);
        self.failed = self.failed.saturating_add(u32::from(how == Ending::Failed));
        self.state = State::Ended(how, now);
    }

    /// Until when it lasted, or lasts.
    pub fn until(&self, now: Moment) -> Moment {
        match self.state {
            State::Open => now,
            State::Ended(_, at) => at,
            State::Untimed => self.began,
        }
    }

    pub fn took(&self, now: Moment) -> Duration {
        match self.state {
            State::Open => self.busy + now.since(self.tried),
            State::Ended(..) => self.busy,
            State::Untimed => Duration::ZERO,
        }
    }

    /// What went by between tries, where there were failed ones.
    pub fn between_tries(&self, now: Moment) -> Duration {
        if self.failed == 0 {
            return Duration::ZERO;
        }
        self.until(now).since(self.began).saturating_sub(self.took(now))
    }

    /// Volumes that follow their objects do so often and in a moment: not worth a line.
    pub fn is_upkeep(&self, now: Moment) -> bool {
        let smooth = self.is_done() && self.failed == 0 && self.took(now) < Duration::from_millis(100);
        self.stage == Stage::Since && self.container.is_none() && smooth
    }

    /// The part that is sure: what began at a whole second may have begun later.
    pub fn certain(&self, now: Moment) -> Duration {
        let unsure = if self.note == Note::AtMost { Duration::from_secs(1) } else { Duration::ZERO };
        self.took(now).saturating_sub(unsure)
    }
}

/// How long at least one of these rows lasted.
pub(super) fn union<'a>(rows: impl Iterator<Item = &'a Row>, now: Moment) -> Duration {
    let mut spans: Vec<(Moment, Moment)> = rows.map(|row| (row.began, row.until(now))).collect();
    spans.sort_by(|(a, _), (b, _)| a.order(*b));
    let mut total = Duration::ZERO;
    let mut reached: Option<Moment> = None;
    for (began, ended) in spans {
        let from = reached.map_or(began, |reached| reached.max(began));
        total += ended.since(from);
        reached = Some(from.max(ended));
    }
    total
}
