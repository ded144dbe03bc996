//! The records of pods' lives, of those that are here and of the last that are gone. What they mean is
//! `keelson_core::timeline`; here are the clock, the locks, and guards that end what they began.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use keelson_core::ids::PodUid;
use keelson_core::timeline::{
    Beginning, Ending, Known, Moment, Note, OtherPod, Place, PodTimeline, Query, Remembered, Step, WhyReport,
    find,
};
use keelson_core::view::PodRow;

#[derive(Clone)]
pub struct Timelines(Arc<Shared>);

struct Shared {
    began: Instant,
    began_at: Timestamp,
    here: Mutex<BTreeMap<PodUid, Recorder>>,
    gone: Mutex<Remembered>,
}

/// Writes the record of one pod. Cloning shares it.
#[derive(Clone)]
pub struct Recorder {
    began: Instant,
    timeline: Arc<Mutex<PodTimeline>>,
}

impl Default for Timelines {
    fn default() -> Self {
        let (began, began_at) = (Instant::now(), Timestamp::now());
        Self(Arc::new(Shared { began, began_at, here: Mutex::default(), gone: Mutex::default() }))
    }
}

impl Timelines {
    /// The record of a pod, which begins now if there is none.
    pub fn of<'a>(&self, uid: &PodUid, beginning: impl FnOnce(Timestamp) -> Beginning<'a>) -> Recorder {
        let mut here = lock(&self.0.here);
        if let Some(known) = here.get(uid) {
            return known.clone();
        }
        let timeline = PodTimeline::new(beginning(self.0.began_at), moment(self.0.began));
        let new = Recorder { began: self.0.began, timeline: Arc::new(Mutex::new(timeline)) };
        here.insert(uid.clone(), new.clone());
        new
    }

    pub fn get(&self, uid: &PodUid) -> Option<Recorder> {
        lock(&self.0.here).get(uid).cloned()
    }

    /// Nothing of the pod is left on this node. It is remembered for a while.
    pub fn gone(&self, uid: &PodUid) {
        let Some(left) = lock(&self.0.here).remove(uid) else { return };
        let timeline = lock(&left.timeline).clone();
        lock(&self.0.gone).add(timeline.gone(moment(self.0.began)));
    }

    /// Why a pod is as it is. `rows` are those of `keelson pods`. The error says what is known.
    pub fn why(&self, query: &Query<'_>, rows: &[Arc<PodRow>]) -> Result<WhyReport, String> {
        let now = moment(self.0.began);
        let here: Vec<Recorder> = lock(&self.0.here).values().cloned().collect();
        let gone: Vec<Arc<PodTimeline>> = lock(&self.0.gone).latest().cloned().collect();
        let known: Vec<Known> = here
            .iter()
            .map(|recorder| lock(&recorder.timeline).known())
            .chain(gone.iter().map(|timeline| timeline.known()))
            .collect();
        let found = find(query, &known)?;
        let mut report = match here.get(found.pod) {
            Some(recorder) => {
                let row = rows.iter().find(|row| row.uid == known[found.pod].uid);
                lock(&recorder.timeline).report(row.map(|row| &**row), now)
            }
            None => gone[found.pod - here.len()].report(None, now),
        };
        let others = found.others.iter().map(|other| &known[*other]);
        report.others = others
            .map(|k| OtherPod { uid: k.uid.clone(), gone_at: k.gone.map(|at| at.to_string()) })
            .collect();
        Ok(report)
    }

    pub fn now(&self) -> Moment {
        moment(self.0.began)
    }
}

impl Recorder {
    /// Writes into the record.
    pub fn record<T>(&self, write: impl FnOnce(&mut PodTimeline, Moment) -> T) -> T {
        let now = moment(self.began);
        write(&mut lock(&self.timeline), now)
    }

    /// A step begins. It is given up when what is returned is dropped before its end.
    pub fn begin(&self, step: Step, container: Option<&str>, place: Place) -> Timing {
        let began = self.record(|timeline, now| {
            timeline.begin(step, container, place, now);
            now
        });
        Timing { recorder: self.clone(), step, container: container.map(Into::into), began, ended: false }
    }
}

/// A step that goes on.
#[must_use]
pub struct Timing {
    recorder: Recorder,
    step: Step,
    container: Option<Box<str>>,
    began: Moment,
    ended: bool,
}

impl Timing {
    /// Returns how long it took.
    pub fn end(mut self, how: Ending) -> Duration {
        self.stop(how)
    }

    /// As the result says.
    pub fn ended<T, E>(self, result: &Result<T, E>) -> Duration {
        self.end(if result.is_ok() { Ending::Done } else { Ending::Failed })
    }

    pub fn note(&self, note: Note) {
        self.recorder.record(|timeline, _| timeline.note(self.step, self.container.as_deref(), note));
    }

    /// Another place is waited for than was thought.
    pub fn moved(&self, place: Place) {
        self.recorder.record(|timeline, _| timeline.moved(self.step, self.container.as_deref(), place));
    }

    pub fn so_far(&self) -> Duration {
        moment(self.recorder.began).since(self.began)
    }

    fn stop(&mut self, how: Ending) -> Duration {
        self.ended = true;
        self.recorder.record(|timeline, now| {
            timeline.end(self.step, self.container.as_deref(), how, now);
            now.since(self.began)
        })
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        if !self.ended {
            self.stop(Ending::GivenUp);
        }
    }
}

fn moment(began: Instant) -> Moment {
    Moment::new(Timestamp::now(), began.elapsed())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
