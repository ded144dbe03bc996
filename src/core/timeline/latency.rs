//! What the metrics of pod starts are made of, each figure once for a pod.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodSpec, PodStatus, Volume};

use super::row::{Ending, Note, Row, union};
use super::step::{Place, Stage, Step};
use super::{Moment, PodTimeline};
use crate::desired::PodSource;

/// Which figures were handed out, and what they need to know.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StartMarks {
    worker: bool,
    running: bool,
    reported: bool,
    /// It could not be scheduled at once: its start is nobody's measure.
    unscheduled: bool,
}

/// How long a pod took to start, from its creation until the apiserver shows that all its containers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartLatency {
    pub total: Duration,
    /// Without pulls and init containers. `None` for a pod with volumes that keep data, which may take their time.
    pub sli: Option<Duration>,
    /// It has a network of its own.
    pub network: bool,
}

impl PodTimeline {
    /// The pod's worker has begun. Returns how long after the pod was seen.
    pub fn worker_began(&mut self, now: Moment) -> Option<Duration> {
        let first = self.fresh && !std::mem::replace(&mut self.start.worker, true);
        first.then(|| now.since(self.seen))
    }

    /// The pod's status as it stands here. Returns how long after it was seen the pod runs, when it does for the first time.
    pub fn status(&mut self, status: &PodStatus, spec: &PodSpec, now: Moment) -> Option<Duration> {
        let runs = status.phase.as_deref() == Some("Running");
        for s in status.container_statuses.iter().chain(&status.init_container_statuses).flatten() {
            if s.ready && runs_now(s) {
                self.end(Step::Ready, Some(&s.name), Ending::Done, now);
            }
        }
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status == "True");
        if let Some(ready) = ready.filter(|_| self.ready.is_none() && self.end.is_none()) {
            let since = ready.last_transition_time.as_ref().filter(|_| !self.fresh);
            self.ready = Some(since.map_or(now, |t| now.place(t.0)));
            if self.fresh && spec.readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
                self.waited_for_gates(now);
            }
        }
        self.report_running(status, now);
        if !self.fresh || !runs || std::mem::replace(&mut self.start.running, true) {
            return None;
        }
        Some(now.since(self.seen))
    }

    fn waited_for_gates(&mut self, now: Moment) {
        let containers = self.rows.iter().filter(|row| row.stage == Stage::Start && row.step == Step::Ready);
        let Some(began) = containers.map(|row| row.until(now)).reduce(Moment::max) else { return };
        let mut row = Row::new(Stage::Start, Step::Ready, None, Place::ReadinessGate, began);
        row.end(Ending::Done, now);
        self.push(row);
    }

    /// A status that says that all containers run is on its way to the apiserver.
    fn report_running(&mut self, status: &PodStatus, now: Moment) {
        let due = self.fresh && self.source == Some(PodSource::Api) && !self.start.reported;
        if due && self.end.is_none() && all_run(status) && self.open(Step::Reported, None).is_none() {
            self.push(Row::new(Stage::Start, Step::Reported, None, Place::Apiserver, now));
        }
    }

    /// The pod as the apiserver shows it. Returns how long it took to start, when it is first shown to have.
    pub fn shown(&mut self, pod: &Pod, now: Moment) -> Option<StartLatency> {
        let none = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&none);
        let scheduled = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled");
        self.start.unscheduled |= scheduled.is_some_and(|c| c.status == "False");
        if !self.fresh || self.start.reported || !all_run(status) {
            return None;
        }
        let row = self.open(Step::Reported, None)?;
        row.end(Ending::Done, now);
        self.start.reported = true;
        let total = Duration::try_from(now.wall().duration_since(self.created?)).unwrap_or_default();
        if self.start.unscheduled {
            return None;
        }
        let spec = pod.spec.as_ref();
        let keeps_data = spec.is_some_and(|s| s.volumes.iter().flatten().any(keeps_data));
        let sli = (!keeps_data).then(|| total.saturating_sub(self.not_counted(now)));
        Some(StartLatency { total, sli, network: spec.is_some_and(|s| s.host_network != Some(true)) })
    }

    /// Pulls, from the first try to the image that came, and what init containers did.
    fn not_counted(&self, now: Moment) -> Duration {
        let of_start = || self.rows.iter().filter(|row| row.stage == Stage::Start);
        let pulls = of_start().filter(|row| matches!(row.note, Note::Pulled { .. }));
        let inits = of_start().filter(|row| row.step == Step::Run).map(|row| row.took(now));
        union(pulls, now) + inits.sum::<Duration>()
    }
}

fn runs_now(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.running.is_some())
}

fn all_run(status: &PodStatus) -> bool {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    !containers.is_empty() && containers.iter().all(runs_now)
}

/// Not made of what the API holds, and not empty at the start.
fn keeps_data(volume: &Volume) -> bool {
    volume.secret.is_none()
        && volume.config_map.is_none()
        && volume.downward_api.is_none()
        && volume.empty_dir.is_none()
        && volume.projected.is_none()
}
