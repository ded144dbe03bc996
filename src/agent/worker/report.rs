//! What the worker tells: status, the local table, events.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use keelson_core::desired::DesiredPod;
use keelson_core::facts::Facts;
use keelson_core::observed::{ContainerState, ObservedContainer};
use keelson_core::plan::{Action, Plan};
use keelson_core::probe::Outcome;
use keelson_core::status;

use super::Worker;
use crate::context::Context;
use crate::prober::Report;

/// What the last status said of an instance, to go on from after a restart of the agent.
pub(super) struct Told {
    pub ready: bool,
    pub started: bool,
}

pub(super) fn told(previous: &PodStatus, c: &ObservedContainer) -> Told {
    let all = previous.container_statuses.iter().chain(&previous.init_container_statuses).flatten();
    let same =
        all.into_iter().find(|s| s.container_id.as_deref().is_some_and(|id| id.ends_with(c.id.as_str())));
    Told { ready: same.is_some_and(|s| s.ready), started: same.is_some_and(|s| s.started == Some(true)) }
}

/// Failed probes become events; the recorder folds repetitions into one.
pub(super) fn probe_reports(ctx: &Arc<Context>, desired: Option<&DesiredPod>) -> Report {
    let (ctx, pod, uid) = (ctx.clone(), desired.map(|d| d.pod.clone()), desired.map(|d| d.uid.clone()));
    Arc::new(move |container, kind, outcome| {
        let Some(pod) = &pod else { return };
        if let Some(uid) = &uid {
            let name = |of: &Option<String>| of.clone().unwrap_or_default();
            let (namespace, name) = (name(&pod.metadata.namespace), name(&pod.metadata.name));
            ctx.metrics.probed((uid, &namespace, &name), container, kind, outcome);
        }
        let (reason, message) = match outcome {
            Outcome::Success => return,
            Outcome::Failure(why) => ("Unhealthy", format!("{} probe failed: {why}", kind.title())),
            Outcome::Unknown(why) => ("Unhealthy", format!("{} probe errored: {why}", kind.title())),
        };
        ctx.pod_event(pod, true, reason, &message, Some(container));
    })
}

impl Worker {
    pub(super) fn publish(&mut self, desired: &DesiredPod, facts: &Facts) {
        let status = status::derive(desired, &self.observed, facts);
        if status.phase.as_deref() != Some("Pending")
            && let Some(since) = self.new_since.take()
        {
            self.ctx.metrics.pod_started(since.elapsed());
        }
        let row = status::view_row(desired, &status);
        self.ctx.view.set(&self.uid, row, Some(desired.pod.clone()));
        if status != self.previous {
            self.previous = status.clone();
        }
        self.ctx.statuses.publish(&self.uid, status);
    }

    /// Events that belong to a decision rather than to an action.
    pub(super) fn report_plan(&mut self, plan: &Plan) {
        if plan.actions.iter().any(|a| matches!(a, Action::CreateSandbox { .. })) {
            for e in &plan.events {
                self.event(e.warning, e.reason, &e.message, e.container.as_deref());
            }
        }
    }

    /// An image that failed to pull is in back-off from the next look on, and that is what status says then. Returns
    /// whether anything changed.
    pub(super) fn soften_image_failures(&mut self) -> bool {
        let failed: Vec<_> =
            self.waiting.iter().filter(|(_, w)| w.reason == "ErrImagePull").map(|(n, _)| n.clone()).collect();
        for name in &failed {
            let image = self.container_spec(name).and_then(|c| c.image.clone()).unwrap_or_default();
            if let Some(w) = self.waiting.get_mut(name) {
                w.reason = "ImagePullBackOff".into();
                w.message = format!("Back-off pulling image {image:?}: ErrImagePull: {}", w.message);
            }
            self.event(false, "BackOff", &format!("Back-off pulling image {image:?}"), Some(name));
        }
        !failed.is_empty()
    }

    /// Once for each instance that is held back, not once for each look at it.
    pub(super) fn report_backoff(&mut self, plan: &Plan) {
        for name in plan.waiting.keys() {
            let Some(dead) = self.observed.latest(name) else { continue };
            if self.backoff_said.get(name) == Some(&dead.id) {
                continue;
            }
            self.backoff_said.insert(name.clone(), dead.id.clone());
            let pod = format!("{}_{}({})", self.observed.name, self.observed.namespace, self.uid);
            let message = format!("Back-off restarting failed container {name} in pod {pod}");
            self.event(true, "BackOff", &message, Some(name));
        }
    }

    pub(super) fn event(&self, warning: bool, reason: &str, message: &str, container: Option<&str>) {
        if let Some(desired) = &self.last_desired {
            self.ctx.pod_event(&desired.pod, warning, reason, message, container);
        }
    }

    pub(super) fn spec(&self) -> Option<&PodSpec> {
        self.last_desired.as_ref().and_then(|d| d.pod.spec.as_ref())
    }

    pub(super) fn container_spec(&self, name: &str) -> Option<&Container> {
        let spec = self.spec()?;
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
    }

    /// Dead containers say why they died in a file or at the end of their log. Read once for each instance, because
    /// the file goes with the pod's directory.
    pub(super) async fn read_termination_messages(&mut self) {
        let dead: Vec<_> = self
            .observed
            .containers
            .iter()
            .filter(|c| c.state == ContainerState::Exited && !self.termination_messages.contains_key(&c.id))
            .cloned()
            .collect();
        self.termination_messages.retain(|id, _| self.observed.containers.iter().any(|c| c.id == *id));
        if dead.is_empty() {
            return;
        }
        let read = tokio::task::spawn_blocking(move || {
            dead.into_iter().map(|c| (c.id.clone(), termination_message(&c))).collect::<Vec<_>>()
        });
        match read.await {
            Ok(read) => self.termination_messages.extend(read),
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

impl Context {
    pub fn pod_event(&self, pod: &Pod, warning: bool, reason: &str, message: &str, container: Option<&str>) {
        let object = match container {
            Some(name) => keelson_apiserver::ObjectRef::container(pod, name),
            None => keelson_apiserver::ObjectRef::pod(pod),
        };
        let kind = if warning {
            keelson_apiserver::EventType::Warning
        } else {
            keelson_apiserver::EventType::Normal
        };
        self.events.event(&object, kind, reason, message);
    }

    pub fn node_event(&self, warning: bool, reason: &str, message: &str) {
        let object = keelson_apiserver::ObjectRef::node(&self.settings.node_name);
        let kind = if warning {
            keelson_apiserver::EventType::Warning
        } else {
            keelson_apiserver::EventType::Normal
        };
        self.events.event(&object, kind, reason, message);
    }
}
