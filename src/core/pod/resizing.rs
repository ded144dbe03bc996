//! A resize as the pod's worker remembers it: what was ordered, what the cgroups have, what failed.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::apply::Applied;
use super::order::ResizeOrder;
use super::state::{PodState, ResizeInProgress};
use crate::allocation::{self, Allocation, Part, ResizeStep};
use crate::observed::ObservedPod;
use crate::plan::PlannedEvent;

impl PodState {
    /// What an agent before this one has recorded of the pod's cgroups, and left of a resize that it had begun.
    pub fn resume_resize(&mut self, record: Option<&Allocation>, found: &ObservedPod) {
        let Some(pod) = self.desired.as_ref().map(|d| d.pod.clone()) else { return };
        self.actuated = Allocation::found(record, &pod, found).map(Arc::new);
        let conditions = self.previous_status.conditions.iter().flatten();
        let shown = conditions.into_iter().find(|c| c.type_ == "PodResizeInProgress" && c.status == "True");
        self.resize.unfinished = shown.is_some() && self.actuated.is_some();
        self.resize.in_progress = shown.map(|c| ResizeInProgress {
            generation: c.observed_generation.unwrap_or(0),
            error: c.message.clone().filter(|_| c.reason.as_deref() == Some("Error")),
        });
    }

    pub(super) fn resize_ordered(&mut self, order: &ResizeOrder) {
        self.resize.pending.clone_from(&order.pending);
        if let Some(generation) = order.granted
            && self.resize.granted != order.granted
        {
            self.resize.granted = order.granted;
            // What failed of an earlier one is over.
            self.resize.in_progress = Some(ResizeInProgress { generation, error: None });
            self.resize.retry_at = None;
        }
    }

    /// Whether what runs has what was granted; with the event that says that it does now.
    pub fn review_resize(&mut self, observed: &ObservedPod) -> Option<PlannedEvent> {
        let pod = self.desired.as_ref().filter(|_| self.lifecycle.is_syncing())?.pod.clone();
        if self.resize.unfinished || allocation::in_progress(&pod, self.actuated.as_deref(), observed) {
            let generation = pod.metadata.generation.unwrap_or(0);
            self.resize.in_progress.get_or_insert(ResizeInProgress { generation, error: None });
            return None;
        }
        let done = self.resize.in_progress.take()?;
        Some(allocation::completed(&pod, done.generation))
    }

    /// The pod's cgroup is there, with what the pod is to have or, if something of it runs, still has.
    pub fn cgroup_ensured(&mut self, observed: &ObservedPod) {
        let Some(desired) = &self.desired else { return };
        if self.actuated.is_none() || observed.running().next().is_none() {
            self.actuated = Some(Arc::new(Allocation::actuated(&desired.pod)));
            self.resize.unfinished = false;
        }
    }

    /// The pod with what its own cgroup is to have now. While something of it runs, that follows a resize in its steps.
    pub fn bounded_pod(&self, observed: &ObservedPod) -> Option<Arc<Pod>> {
        let desired = self.desired.as_ref()?;
        match &self.actuated {
            Some(actuated) if observed.running().next().is_some() => Some(actuated.granted(&desired.pod)),
            _ => Some(desired.pod.clone()),
        }
    }

    /// The pod as it is after a step: what its container is told.
    pub fn after_step(&self, step: &ResizeStep) -> Option<Pod> {
        let desired = self.desired.as_ref()?;
        let mut actuated = Allocation::clone(self.actuated.as_ref()?);
        actuated.take_step(&desired.pod, step);
        Some(actuated.over(&desired.pod))
    }

    pub(super) fn step_taken(&mut self, step: &ResizeStep) -> Applied {
        self.resize.unfinished = true;
        if let (Some(actuated), Some(desired)) = (&mut self.actuated, &self.desired) {
            Arc::make_mut(actuated).take_step(&desired.pod, step);
        }
        Applied::default()
    }

    pub(super) fn resized(&mut self) -> Applied {
        (self.resize.unfinished, self.resize.retry_at) = (false, None);
        Applied::default()
    }

    pub(super) fn made(&mut self, container: &str) {
        let Some(desired) = &self.desired else { return };
        let mut actuated = self.actuated.take().unwrap_or_default();
        Arc::make_mut(&mut actuated).container_made(&desired.pod, container);
        self.actuated = Some(actuated);
    }

    pub(super) fn resize_failed(&mut self, message: String, retry_at: Timestamp) -> Applied {
        self.resize.retry_at = Some(retry_at);
        let Some(desired) = &self.desired else { return Applied { stop: true, ..Applied::default() } };
        let generation = desired.pod.metadata.generation.unwrap_or(0);
        let going = self.resize.in_progress.get_or_insert(ResizeInProgress { generation, error: None });
        let known = going.error.as_ref() == Some(&message);
        let event = allocation::failed(&desired.pod, going.generation, &message);
        going.error = Some(message);
        Applied { events: if known { vec![] } else { vec![event] }, stop: true }
    }
}

impl Allocation {
    fn take_step(&mut self, granted: &Pod, step: &ResizeStep) {
        let mut want = Self::actuated(granted);
        match step {
            ResizeStep::Pod(_) => {}
            ResizeStep::PodDone(part) => {
                let Some(new) = want.pod_level_resources else { return };
                part.copy(&new, self.pod_level_resources.get_or_insert_default());
            }
            ResizeStep::Container { name, part, .. } => {
                let Some(new) = want.container_resources.remove(name) else { return };
                part.copy(&new, self.container_resources.entry(name.clone()).or_default());
            }
        }
    }
}

impl Part {
    fn copy(
        self,
        from: &k8s_openapi::api::core::v1::ResourceRequirements,
        to: &mut k8s_openapi::api::core::v1::ResourceRequirements,
    ) {
        let name = match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        };
        for (from, to) in [(&from.requests, &mut to.requests), (&from.limits, &mut to.limits)] {
            match from.as_ref().and_then(|list| list.get(name)) {
                Some(quantity) => {
                    to.get_or_insert_default().insert(name.to_owned(), quantity.clone());
                }
                None => {
                    to.iter_mut().for_each(|list| drop(list.remove(name)));
                }
            }
        }
    }
}
