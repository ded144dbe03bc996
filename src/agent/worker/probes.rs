//! Which probes run, where they go, and what they report.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use keelson_core::desired::DesiredPod;
use keelson_core::ids::ContainerId;
use keelson_core::observed::ObservedContainer;
use keelson_core::probe::Outcome;
use keelson_core::timeline::{Place, Step};

use super::Worker;
use crate::node::Node;
use crate::probe::handler;
use crate::probe::prober::{Instance, Report};
use crate::registry::timelines::Recorder;

/// Failed probes become events; the recorder folds repetitions into one.
pub(super) fn reports(node: &Arc<Node>, recorder: &Recorder, desired: Option<&DesiredPod>) -> Report {
    let (node, recorder, desired) = (node.clone(), recorder.clone(), desired.cloned());
    Arc::new(move |container, kind, outcome| {
        let Some(desired) = &desired else { return };
        let pod = (&desired.uid, desired.namespace(), desired.name());
        node.reports.metrics.probed(pod, container, kind, outcome);
        if let Some(event) = outcome.event(kind) {
            if !matches!(outcome, Outcome::Warning(_)) {
                let cause = &event.message;
                recorder.record(|t, now| t.failed(Step::Probe, Place::Probe, Some(container), cause, now));
            }
            node.pod_event(&desired.pod, event.warning, event.reason, &event.message, Some(container));
        }
    })
}

impl Worker {
    /// Probes run for what runs, for as long as it runs and they have their time in the pod's life.
    pub(super) fn follow_probes(&mut self) {
        let Some(desired) = &self.state.desired else { return };
        let lifecycle = &self.state.lifecycle;
        let running: Vec<_> = self.observed.running().collect();
        self.prober.keep_only(&running.iter().map(|c| &c.id).collect::<Vec<_>>(), lifecycle);
        let mut new = vec![];
        for c in running {
            let spec = desired.container(&c.name);
            if spec.is_none() || self.prober.watches(&c.id) || self.state.hook_running(&c.id) {
                continue;
            }
            let reported = reported(&self.state.previous_status, c);
            let was_ready = reported.is_some_and(|s| s.ready);
            let was_started = reported.is_some_and(|s| s.started == Some(true));
            let up = c.started_at.map(|at| Timestamp::now().duration_since(at));
            let up = up.and_then(|d| Duration::try_from(d).ok()).unwrap_or_default();
            new.extend(self.place(&c.id, &c.name).map(|place| Instance {
                place,
                up,
                was_ready,
                was_started,
            }));
        }
        for instance in new {
            self.prober.watch(instance, lifecycle);
        }
    }

    /// Where probes and hooks of a container go.
    pub(super) fn place(&self, id: &ContainerId, name: &str) -> Option<handler::Place> {
        let desired = self.state.desired.as_ref()?;
        let container = desired.container(name)?;
        Some(handler::Place {
            runtime: self.node.runtime.clone(),
            container: id.clone(),
            pod_ip: self.pod_ip(desired),
            spec: Arc::new(container.clone()),
            pod: desired.pod.clone(),
            events: self.node.reports.events.clone(),
            resolver: self.prober.resolver().clone(),
        })
    }

    fn pod_ip(&self, desired: &DesiredPod) -> Option<IpAddr> {
        if desired.pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true)) {
            return self.node.state.addresses().first().copied();
        }
        let sandbox = self.observed.latest_sandbox()?;
        sandbox.addresses(&self.node.state.addresses()).first().copied()
    }
}

/// What the last status said of an instance, to go on from after a restart of the agent.
fn reported<'a>(previous: &'a PodStatus, c: &ObservedContainer) -> Option<&'a ContainerStatus> {
    let all = previous.container_statuses.iter().chain(&previous.init_container_statuses).flatten();
    all.into_iter().find(|s| s.container_id.as_deref().is_some_and(|id| id.ends_with(c.id.as_str())))
}
