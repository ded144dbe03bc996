//! What the worker reports: status, the local table, events; and what it reads from disk for the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use keelson_core::facts::Facts;
use keelson_core::observed::ObservedContainer;
use keelson_core::plan::{Action, Plan, PlannedEvent};
use keelson_core::pod::Waiting;
use keelson_core::status::{self, StatusInput};

use super::Worker;

impl Worker {
    pub(super) fn publish(&mut self, facts: &Facts, held_back: &BTreeMap<String, Waiting>) {
        let Some(desired) = &self.state.desired else { return };
        let (observed, state) = (&self.observed, &self.state);
        let status = status::derive(&StatusInput { desired, observed, state, facts, held_back });
        if status.phase.as_deref() != Some("Pending")
            && let Some(since) = self.new_since.take()
        {
            self.node.reports.metrics.pod_started(since.elapsed());
        }
        let row = status::view_row(desired, &status);
        if status != *self.state.previous_status {
            self.state.previous_status = Arc::new(status);
        }
        if self.node.registry.publish(&self.uid, &desired.pod, self.state.previous_status.clone(), row) {
            self.node.reports.statuses.write(&self.uid);
        }
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

    /// Dead containers say why they died in a file or at the end of their log. Read once for each instance, because
    /// the file goes with the pod's directory.
    pub(super) async fn read_termination_messages(&mut self) {
        let dead: Vec<_> = self.state.unread_messages(&self.observed).cloned().collect();
        if dead.is_empty() {
            return;
        }
        let read = tokio::task::spawn_blocking(move || {
            dead.into_iter().map(|c| (c.id.clone(), termination_message(&c))).collect::<Vec<_>>()
        });
        match read.await {
            Ok(read) => read.into_iter().for_each(|(id, message)| self.state.message_read(id, message)),
            Err(e) => tracing::warn!(error = %e, "termination messages could not be read"),
        }
    }
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
