//! What the worker reports: status, the local table, events; and what it reads from disk for the status.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use keelson_core::desired::DesiredPod;
use keelson_core::facts::Facts;
use keelson_core::ids::ContainerId;
use keelson_core::observed::{ObservedContainer, ObservedPod};
use keelson_core::plan::{Action, Plan, PlannedEvent};
use keelson_core::pod::PodState;
use keelson_core::status::{self, StatusInput};

use super::Worker;

impl Worker {
    pub(super) fn publish(&mut self, facts: &Facts) {
        let Some(desired) = self.state.desired.clone() else { return };
        let (observed, state, held_back) = (&self.observed, &self.state, &self.held_back);
        let status = status::derive(&StatusInput { desired: &desired, observed, state, facts, held_back });
        self.state.previous_status = self.hand_on(&desired, &self.state, status);
    }

    /// To whoever reports it. Returns the status that stands: one that has not changed stays shared.
    pub(super) fn hand_on(
        &self,
        desired: &DesiredPod,
        state: &PodState,
        status: PodStatus,
    ) -> Arc<PodStatus> {
        let row = status::view_row(desired, &status);
        let unchanged = status == *state.previous_status;
        if !unchanged && let Some(spec) = &desired.pod.spec {
            let running = self.recorder.record(|timeline, now| timeline.status(&status, spec, now));
            running.into_iter().for_each(|took| self.node.reports.metrics.starts.pod_running(took));
        }
        let status = if unchanged { state.previous_status.clone() } else { Arc::new(status) };
        if self.node.registry.publish(&self.uid, &desired.pod, status.clone(), row) {
            self.node.reports.statuses.write(&self.uid);
        }
        status
    }

    /// The status that was handed on last, also while an action went on.
    pub(super) fn published(&self) -> Option<Arc<PodStatus>> {
        self.node.registry.get(&self.uid)?.status
    }

    /// Events that belong to a decision rather than to an action.
    pub(super) fn report_plan(&self, plan: &Plan) {
        if plan.actions.iter().any(|a| matches!(a, Action::CreateSandbox { .. })) {
            self.report_events(&plan.events);
        }
    }

    pub(super) fn report_events(&self, events: &[PlannedEvent]) {
        for e in events {
            self.event(e.warning, e.reason, &e.message, e.container.as_deref());
        }
    }

    pub(super) fn event(&self, warning: bool, reason: &str, message: &str, container: Option<&str>) {
        if let Some(desired) = &self.state.desired {
            self.node.pod_event(&desired.pod, warning, reason, message, container);
        }
    }
}

/// Dead containers say why they died in a file or at the end of their log. Read once for each instance, because the file
/// goes with the pod's directory.
pub(super) async fn termination_messages(
    state: &PodState,
    observed: &ObservedPod,
) -> Vec<(ContainerId, String)> {
    let dead: Vec<_> = state.unread_messages(observed).cloned().collect();
    if dead.is_empty() {
        return vec![];
    }
    let read = tokio::task::spawn_blocking(move || {
        dead.into_iter().map(|c| (c.id.clone(), termination_message(&c))).collect()
    });
    read.await.unwrap_or_else(|e| {
        tracing::warn!(error = %e, "termination messages could not be read");
        vec![]
    })
}

fn termination_message(c: &ObservedContainer) -> String {
    let from_file = c.termination_message_host_path.as_deref().map(|p| {
        keelson_host::files::read_termination_message(p.as_ref()).unwrap_or_else(|e| {
            if e.kind() == std::io::ErrorKind::NotFound {
                String::new()
            } else {
                format!("Error on reading termination log {e}")
            }
        })
    });
    let message = from_file.unwrap_or_default();
    let fall_back =
        c.termination_message_policy.as_deref() == Some("FallbackToLogsOnError") && c.exit_code != 0;
    if message.is_empty() && fall_back {
        return keelson_host::files::read_log_message(c.log_path.as_ref()).unwrap_or_default();
    }
    message
}
