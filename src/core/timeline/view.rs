//! A record as it is shown.

use std::time::Duration;

use jiff::Timestamp;

use super::failure::Failure;
use super::report::{FailureReport, PlaceTime, StageReport, StepReport, WaitReport, WhyReport};
use super::row::{Ending, Note, Row, State, union};
use super::step::{Place, Stage, Step};
use super::wait::{Detail, Wait};
use super::{Moment, PodTimeline};
use crate::desired::PodSource;
use crate::status::is_final;
use crate::view::PodRow;

impl PodTimeline {
    /// `row` is the pod's row in the table of `keelson pods`, while it has one.
    pub fn report(&self, row: Option<&PodRow>, now: Moment) -> WhyReport {
        let phase = match (self.gone, row) {
            (Some(_), _) => "Gone",
            (None, Some(row)) => &row.phase,
            (None, None) => "Pending",
        };
        let ready = self.gone.is_none() && row.is_some_and(|row| row.ready);
        let mut stages = vec![];
        for stage in [Stage::Start, Stage::Since, Stage::Stop] {
            stages.extend(self.stage_report(stage, now));
        }
        WhyReport {
            namespace: self.namespace.to_string(),
            name: self.name.to_string(),
            uid: self.uid.to_string(),
            source: match self.source {
                Some(PodSource::Api) => "api",
                Some(PodSource::Static) => "file",
                None => "",
            }
            .to_owned(),
            phase: phase.to_owned(),
            ready,
            summary: self.summary(phase, ready, now),
            at: now.wall().to_string(),
            gone_at: self.gone.map(|at| at.wall().to_string()),
            now: self.waiting(ready, now),
            stages,
            failures: self.failures.latest().map(|f| self.failure_report(f)).collect(),
            others: vec![],
            left_out: self.left_out,
        }
    }

    fn name_of(&self, container: Option<u16>) -> Option<String> {
        container.and_then(|index| self.containers.get(usize::from(index))).map(|name| name.to_string())
    }

    fn summary(&self, phase: &str, ready: bool, now: Moment) -> String {
        let end = self.end.as_deref();
        if let Some(gone) = self.gone {
            return format!("gone for {}: {}", span(now.since(gone)), end.unwrap_or("it never ran here"));
        }
        if let Some(end) = end {
            return if is_final(phase) { format!("{phase}: {end}") } else { format!("ending: {end}") };
        }
        let slowest = self.slowest(Stage::Start, now).map(|row| {
            let of = self.name_of(row.container).map_or(String::new(), |name| format!(" of {name}"));
            let open = if row.is_open() { " so far" } else { "" };
            let took = span(row.took(now));
            format!("; the slowest step was {}{of}: {took}{open} ({})", row.step.name(), row.place.words())
        });
        let slowest = slowest.unwrap_or_default();
        match (ready, self.ready) {
            (true, Some(at)) if self.fresh => {
                format!("ready, {} after it was seen{slowest}", span(at.since(self.seen)))
            }
            (true, _) => "ready; it was started before this agent was".to_owned(),
            (false, Some(_)) => "not ready any more".to_owned(),
            (false, None) => format!("not ready, {} after it was seen{slowest}", span(now.since(self.seen))),
        }
    }

    fn waiting(&self, ready: bool, now: Moment) -> Vec<WaitReport> {
        let open = || self.rows.iter().filter(|row| row.is_open());
        let acting: Vec<&Row> = open().filter(|row| row.step.is_acted()).collect();
        let mut all: Vec<WaitReport> = acting.iter().map(|row| self.open_report(row)).collect();
        // What the worker went to rest with is old news for what it is busy with now.
        let busy = |wait: &&Wait| acting.iter().any(|row| self.name_of(row.container) == wait.container);
        all.extend(self.waits.iter().filter(|wait| !busy(wait)).map(|wait| self.wait_report(wait, now)));
        let unsaid = all.is_empty();
        let others = open().filter(|row| match row.step {
            Step::Admitted => unsaid,
            Step::Reported => !ready,
            _ => false,
        });
        all.extend(others.map(|row| self.open_report(row)));
        if let Some(since) = self.unwritten_since {
            all.push(WaitReport {
                container: None,
                what: "the apiserver does not have its latest status".into(),
                then: "it is written when the apiserver takes it".into(),
                since: Some(since.wall().to_string()),
                retry_at: None,
                retry_in_seconds: None,
            });
        }
        all
    }

    fn open_report(&self, row: &Row) -> WaitReport {
        let (what, then) = row.step.going_on();
        WaitReport {
            container: self.name_of(row.container),
            what: what.into(),
            then: then.into(),
            since: Some(row.tried.wall().to_string()),
            retry_at: None,
            retry_in_seconds: None,
        }
    }

    fn wait_report(&self, wait: &Wait, now: Moment) -> WaitReport {
        let of_probe = |f: &&Failure| f.step == Step::Probe && self.name_of(f.container) == wait.container;
        let detail = match wait.detail {
            Some(Detail::Latest) => self.failures.latest().next(),
            Some(Detail::Probe) => self.failures.latest().find(of_probe),
            None => None,
        };
        let what = match detail {
            Some(failure) => format!("{}: {}", wait.what, failure.cause),
            None => wait.what.clone(),
        };
        let left = |at: Timestamp| Duration::try_from(at.duration_since(now.wall())).unwrap_or_default();
        WaitReport {
            container: wait.container.clone(),
            what,
            then: wait.then.clone(),
            since: None,
            retry_at: wait.retry_at.map(|at| at.to_string()),
            retry_in_seconds: wait.retry_at.map(|at| seconds(left(at))),
        }
    }

    fn failure_report(&self, f: &Failure) -> FailureReport {
        FailureReport {
            first_at: f.first.wall().to_string(),
            last_at: f.last.wall().to_string(),
            count: f.count,
            step: f.step.name().into(),
            container: self.name_of(f.container),
            place: f.place.words().into(),
            cause: if f.cut { format!("{}\u{2026}", f.cause) } else { f.cause.to_string() },
        }
    }

    fn of_stage(&self, stage: Stage) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.stage == stage)
    }

    fn slowest(&self, stage: Stage, now: Moment) -> Option<&Row> {
        let timed = self.of_stage(stage).filter(|row| !row.certain(now).is_zero());
        timed.reduce(|most, row| if row.certain(now) > most.certain(now) { row } else { most })
    }

    fn stage_report(&self, stage: Stage, now: Moment) -> Option<StageReport> {
        let mut rows: Vec<&Row> = self.of_stage(stage).filter(|row| !row.is_upkeep(now)).collect();
        rows.sort_by(|a, b| a.began.order(b.began));
        let began = rows.first()?.began;
        let goes_on = match stage {
            Stage::Start => self.ready.is_none() && self.end.is_none(),
            Stage::Since => rows.iter().any(|row| row.is_open()),
            Stage::Stop => self.gone.is_none() && rows.iter().any(|row| row.is_open()),
        };
        let last = rows.iter().map(|row| row.until(now)).reduce(Moment::max)?;
        let ended = match self.ready.filter(|_| stage == Stage::Start) {
            Some(ready) => ready,
            None if goes_on => now,
            None => last,
        };
        let timed = stage != Stage::Start || self.fresh;
        let slowest = self.slowest(stage, now);
        let steps = rows.iter().map(|row| {
            let slowest = slowest.is_some_and(|s| std::ptr::eq(s, *row));
            self.step_report(row, began, slowest, now)
        });
        Some(StageReport {
            stage: stage.name().into(),
            began_at: began.wall().to_string(),
            ended_at: (!goes_on).then(|| ended.wall().to_string()),
            seconds: timed.then(|| seconds(ended.since(began))),
            steps: steps.collect(),
            places: if timed { places(&rows, ended.since(began), now) } else { vec![] },
        })
    }

    fn step_report(&self, row: &Row, stage_began: Moment, slowest: bool, now: Moment) -> StepReport {
        let untimed = row.state == State::Untimed;
        StepReport {
            step: row.step.name().into(),
            container: self.name_of(row.container),
            place: (!untimed).then(|| row.place.words().into()),
            began_at: row.began.wall().to_string(),
            ended_at: (!row.is_open()).then(|| row.until(now).wall().to_string()),
            offset_seconds: seconds(row.began.since(stage_began)),
            seconds: (!untimed).then(|| seconds(row.took(now))),
            at_most: row.note == Note::AtMost,
            failed_tries: row.failed,
            result: match row.state {
                State::Open => "running",
                State::Ended(Ending::Done, _) | State::Untimed => "done",
                State::Ended(Ending::Failed, _) => "failed",
                State::Ended(Ending::GivenUp, _) => "givenUp",
            }
            .into(),
            note: note(row.note),
            slowest,
        }
    }
}

/// A manifest that was refused is no pod, but somebody may ask why it does not run.
pub fn refused(row: &PodRow, now: Moment) -> WhyReport {
    WhyReport {
        namespace: String::new(),
        name: row.name.clone(),
        uid: String::new(),
        source: row.source.clone(),
        phase: row.phase.clone(),
        ready: false,
        summary: format!("this manifest was refused: {}", row.reason),
        at: now.wall().to_string(),
        gone_at: None,
        now: vec![WaitReport {
            container: None,
            what: row.reason.clone(),
            then: "it is read again when the file changes".into(),
            since: None,
            retry_at: None,
            retry_in_seconds: None,
        }],
        stages: vec![],
        failures: vec![],
        others: vec![],
        left_out: 0,
    }
}

/// Steps of several containers may go on at once: a place has no more than the time in which one of its steps did.
fn places(rows: &[&Row], total: Duration, now: Moment) -> Vec<PlaceTime> {
    let mut all: Vec<(Place, Duration)> = vec![];
    let mut add = |place: Place, time: Duration| match all.iter_mut().find(|(known, _)| *known == place) {
        Some((_, sum)) => *sum += time,
        None => all.push((place, time)),
    };
    let mut seen: Vec<Place> = vec![];
    for row in rows {
        if seen.contains(&row.place) || row.state == State::Untimed {
            continue;
        }
        seen.push(row.place);
        let own = || rows.iter().filter(|r| r.place == row.place).copied();
        let sum = own().map(|r| r.took(now)).sum::<Duration>();
        add(row.place, sum.min(union(own(), now)));
    }
    let pauses = rows.iter().map(|r| r.between_tries(now)).sum::<Duration>();
    add(Place::BackOff, pauses.min(total));
    // What no step accounts for went by between them.
    add(Place::Agent, total.saturating_sub(union(rows.iter().copied(), now)));
    all.retain(|(_, time)| !time.is_zero());
    all.sort_by_key(|(place, time)| (std::cmp::Reverse(*time), *place));
    all.into_iter().map(|(place, t)| PlaceTime { place: place.words().into(), seconds: seconds(t) }).collect()
}

fn note(note: Note) -> Option<String> {
    match note {
        Note::None | Note::AtMost => None,
        Note::Present => Some("already on this machine".into()),
        Note::Pulled { bytes, waiting } if waiting >= Duration::from_millis(100) => {
            Some(format!("{bytes} bytes, {} of it waiting for another pull of it", span(waiting)))
        }
        Note::Pulled { bytes, .. } => Some(format!("{bytes} bytes")),
        Note::Owned { entries } => Some(format!("{entries} files given to the fsGroup")),
        Note::BeforeAgent => Some("this agent was not running yet".into()),
    }
}

fn seconds(time: Duration) -> f64 {
    // Exact to the microsecond in both directions.
    time.as_micros() as f64 / 1e6
}

/// As people read it: 412 ms, 2.31 s, 45.1 s, 12m5s, 3h5m, 2d4h.
pub fn span(time: Duration) -> String {
    let (millis, s) = (time.as_millis(), time.as_secs());
    match s {
        _ if millis < 1000 => format!("{millis} ms"),
        0..10 => format!("{:.2} s", time.as_secs_f64()),
        10..120 => format!("{:.1} s", time.as_secs_f64()),
        120..7200 => format!("{}m{}s", s / 60, s % 60),
        7200..172_800 => format!("{}h{}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{}h", s / 86400, s / 3600 % 24),
    }
}
