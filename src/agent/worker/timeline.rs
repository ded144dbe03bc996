//! What the worker writes into its pod's timeline beside the steps that it carries out.

use keelson_core::desired::{Lifecycle, TerminationReason};
use keelson_core::ids::ContainerId;
use keelson_core::plan::Plan;
use keelson_core::timeline::{Place, Step, Wait, WaitInput, asked_at, exit_cause, is_settled, waits};
use keelson_cri::CriError;

use super::Worker;

impl Worker {
    /// The pod comes to rest: what it waits for.
    pub(super) fn record_waits(&self, plan: &Plan) {
        if is_settled(&self.state, plan) {
            return self.recorder.record(|timeline, _| timeline.rests(vec![]));
        }
        let waits = waits(&WaitInput {
            state: &self.state,
            plan,
            observed: &self.observed,
            facts: &self.facts(),
            standalone: self.node.api.is_none(),
        });
        self.recorder.record(|timeline, _| timeline.rests(waits));
    }

    pub(super) fn record_unobserved(&self, error: &CriError) {
        let cause = error.to_string();
        let wait = Wait::pod(
            format!("the runtime does not say how the pod stands: {cause}"),
            "it goes on when the runtime answers",
        );
        self.recorder.record(|timeline, now| {
            timeline.failed(Step::Observe, Place::Runtime, None, &cause, now);
            timeline.rests(vec![wait.until(self.observe_retry.at())]);
        });
    }

    /// The pod's life is about to move on to `next`.
    pub(super) fn record_end(&self, next: &Lifecycle) {
        let before = self.state.lifecycle.end();
        let Some(reason) = next.end().filter(|reason| before != Some(*reason)) else { return };
        let pod = self.state.desired.as_ref().map(|desired| &desired.pod);
        let asked = pod.filter(|_| *reason == TerminationReason::Deleted).and_then(|pod| asked_at(pod));
        self.recorder.record(|timeline, now| timeline.ends(reason, asked, now));
    }

    /// A container has ended. That is a failure unless it was to, or did what it was for.
    pub(super) fn record_exit(&self, id: &ContainerId, message: &str) {
        let ended = self.observed.containers.iter().find(|c| c.id == *id);
        let wanted = !self.state.lifecycle.is_syncing() || self.state.restart_ordered(id).is_some();
        let Some(ended) = ended.filter(|c| c.has_failed() && !wanted) else { return };
        let cause = exit_cause(ended, message);
        self.recorder.record(|timeline, now| {
            let at = ended.finished_at.map_or(now, |at| now.place(at));
            timeline.failed(Step::Run, Place::Container, Some(&ended.name), &cause, at);
        });
    }
}
