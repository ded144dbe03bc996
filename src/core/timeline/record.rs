//! What is written of one pod while it lives.

use jiff::Timestamp;

use super::failure::{Failures, told};
use super::row::{Ending, Note, Row, State};
use super::step::{Place, Stage, Step};
use super::wait::Wait;
use super::{Beginning, Moment};
use crate::desired::PodSource;
use crate::ids::PodUid;
use crate::pod::ActionOutcome;

/// The most that is kept of one pod. What is more is counted and left out.
pub(super) const MOST_ROWS: usize = 160;
pub(super) const MOST_CONTAINERS: usize = 64;
/// The most that a pod can wait for at once: one thing for each container and a few for itself.
pub(super) const MOST_WAITS: usize = 16;

#[derive(Debug, Clone)]
pub struct PodTimeline {
    pub(super) uid: PodUid,
    pub(super) namespace: Box<str>,
    pub(super) name: Box<str>,
    /// `None`: no source knows the pod, it was left in the runtime.
    pub(super) source: Option<PodSource>,
    pub(super) created: Option<Timestamp>,
    pub(super) seen: Moment,
    /// This agent has started it. One that it found running was started by an agent before.
    pub(super) fresh: bool,
    /// Names of containers, which rows and failures refer to.
    pub(super) containers: Vec<Box<str>>,
    pub(super) rows: Vec<Row>,
    pub(super) left_out: u32,
    pub(super) failures: Failures,
    pub(super) waits: Vec<Wait>,
    /// The status could not be written since then.
    pub(super) unwritten_since: Option<Moment>,
    /// When it was first ready.
    pub(super) ready: Option<Moment>,
    pub(super) start: super::latency::StartMarks,
    /// Why it ends, or ended.
    pub(super) end: Option<Box<str>>,
    /// It ends for good: its source does not want it any more.
    pub(super) leaves: bool,
    pub(super) gone: Option<Moment>,
}

impl PodTimeline {
    pub fn new(beginning: Beginning<'_>, now: Moment) -> Self {
        let Beginning { uid, namespace, name, .. } = beginning;
        let mut timeline = Self {
            uid: uid.clone(),
            namespace: namespace.into(),
            name: name.into(),
            source: beginning.source,
            created: beginning.created,
            seen: now,
            fresh: beginning.fresh,
            containers: vec![],
            rows: vec![],
            left_out: 0,
            failures: Failures::default(),
            waits: vec![],
            unwritten_since: None,
            ready: None,
            start: Default::default(),
            end: None,
            leaves: false,
            gone: None,
        };
        timeline.first_seen(&beginning, now);
        timeline
    }

    pub fn uid(&self) -> &PodUid {
        &self.uid
    }

    /// A step begins, or is tried again.
    pub fn begin(&mut self, step: Step, container: Option<&str>, place: Place, now: Moment) {
        let Some(index) = self.index(container) else { return };
        let stage = self.stage(step, index);
        if stage == Stage::Since {
            self.begin_cycle(step, index);
        }
        if let Some(row) = self.rows.iter_mut().find(|row| row.is(stage, step, index)) {
            return row.again(place, now);
        }
        self.push(Row::new(stage, step, index, place, now));
    }

    pub fn end(&mut self, step: Step, container: Option<&str>, how: Ending, now: Moment) {
        if let Some(row) = self.open(step, container) {
            row.end(how, now);
        }
    }

    /// What there is to say of a step that goes on.
    pub fn note(&mut self, step: Step, container: Option<&str>, note: Note) {
        if let Some(row) = self.open(step, container) {
            row.note = note;
        }
    }

    /// Another place is waited for than was thought when the step began.
    pub fn moved(&mut self, step: Step, container: Option<&str>, place: Place) {
        if let Some(row) = self.open(step, container) {
            row.place = place;
        }
    }

    pub fn failed(&mut self, step: Step, place: Place, container: Option<&str>, cause: &str, now: Moment) {
        let Some(index) = self.index(container) else { return };
        self.failures.add(step, place, index, cause, now);
    }

    /// Keeps what an outcome tells of failures.
    pub fn outcome(&mut self, done: &ActionOutcome, now: Moment) {
        for t in told(done) {
            self.failed(t.step, t.place, t.container, t.cause, now);
        }
    }

    /// The pod is at rest, and waits for these.
    pub fn rests(&mut self, mut waits: Vec<Wait>) {
        waits.truncate(MOST_WAITS);
        self.waits = waits;
    }

    /// Whether the apiserver has taken the pod's status.
    pub fn status_written(&mut self, result: Result<(), &str>, now: Moment) {
        match result {
            Ok(()) => self.unwritten_since = None,
            Err(cause) => {
                self.unwritten_since.get_or_insert(now);
                self.failed(Step::Status, Place::Apiserver, None, cause, now);
            }
        }
    }

    /// Nothing of the pod is left here. What is kept from now on is small.
    pub fn gone(mut self, now: Moment) -> Self {
        for row in self.rows.iter_mut().filter(|row| row.is_open()) {
            row.end(Ending::GivenUp, now);
        }
        self.gone = Some(now);
        self.waits = vec![];
        self.failures.shrink();
        self.rows.shrink_to_fit();
        self.containers.shrink_to_fit();
        self
    }

    /// Nothing was done for it but to take it down.
    pub(super) fn only_ended(&self) -> bool {
        let old = |row: &Row| row.stage == Stage::Stop || row.state == State::Untimed;
        !self.fresh && self.rows.iter().all(old)
    }

    /// A container belongs to the start of the pod until it was started, everything else until the sandbox was made.
    fn stage(&self, step: Step, container: Option<u16>) -> Stage {
        if self.end.is_some() {
            return Stage::Stop;
        }
        let done = |stage, last| self.rows.iter().any(|row| row.is(stage, last, container) && row.is_done());
        let started = match container {
            Some(_) if step.follows_start() => done(Stage::Since, Step::Started),
            Some(_) => done(Stage::Start, Step::Started),
            None => done(Stage::Start, Step::Sandbox),
        };
        if started || !self.fresh { Stage::Since } else { Stage::Start }
    }

    /// Only the latest restart of a container is kept, and of the other steps the latest that was done.
    fn begin_cycle(&mut self, step: Step, container: Option<u16>) {
        let last = if container.is_some() { Step::Started } else { step };
        let over = self.rows.iter().any(|row| row.is(Stage::Since, last, container) && row.is_done());
        if !over || (container.is_some() && !step.opens_cycle()) {
            return;
        }
        self.rows.retain(|row| {
            row.stage != Stage::Since
                || row.container != container
                || (container.is_none() && row.step != step)
        });
    }

    pub(super) fn push(&mut self, row: Row) {
        if self.rows.len() < MOST_ROWS {
            self.rows.push(row);
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }

    /// The outer `None`: there are more containers than are kept.
    pub(super) fn index(&mut self, container: Option<&str>) -> Option<Option<u16>> {
        let Some(name) = container else { return Some(None) };
        if let Some(known) = self.position(name) {
            return Some(Some(known));
        }
        if self.containers.len() >= MOST_CONTAINERS {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.containers.push(name[..name.floor_char_boundary(253)].into());
        u16::try_from(self.containers.len() - 1).ok().map(Some)
    }

    pub(super) fn position(&self, container: &str) -> Option<u16> {
        let index = self.containers.iter().position(|known| **known == *container)?;
        u16::try_from(index).ok()
    }

    pub(super) fn open(&mut self, step: Step, container: Option<&str>) -> Option<&mut Row> {
        let index = match container {
            Some(name) => Some(self.position(name)?),
            None => None,
        };
        self.rows.iter_mut().find(|row| row.step == step && row.container == index && row.is_open())
    }

    /// Something that was done before this agent came, at a time that somebody else remembers.
    pub(super) fn untimed(&mut self, step: Step, container: Option<&str>, at: Moment) {
        let Some(index) = self.index(container) else { return };
        if !self.rows.iter().any(|row| row.is(Stage::Start, step, index)) {
            let row = Row::new(Stage::Start, step, index, Place::Agent, at);
            self.push(Row { state: State::Untimed, ..row });
        }
    }
}
