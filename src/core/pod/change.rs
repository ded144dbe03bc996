//! How a pod's memory changes by what comes in from outside: orders, observations, changed objects, time.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::order::{Directive, Order};
use super::state::{InstanceMemory, PodState};
use crate::backoff::Backoff;
use crate::desired::{DesiredPod, Lifecycle, TerminationReason};
use crate::hash::container_hash;
use crate::ids::ContainerId;
use crate::image::{PULL_BACK_OFF, image_of_volume, is_failed_pull, is_image_reason};
use crate::observed::{ContainerState, ObservedContainer, ObservedPod, SandboxState};
use crate::plan::{DEADLINE_EXCEEDED, Kill, Plan, PlannedEvent, Restart, restarts_all_after};
use crate::volumes::{Change, VolumePlan, VolumesState};

/// A start whose caller died is being given up for so long, and the container cannot be removed in that time: containerd
/// takes 5 s for it, more on a busy machine. What cannot be removed after that is stuck.
const GIVING_UP: SignedDuration = SignedDuration::from_secs(30);
/// Failed removals in a row before the sandbox around a stuck container is given up.
const REMOVALS: u32 = 4;

impl PodState {
    /// Takes over what the latest order wants. A vanished pod is remembered as it last was.
    pub fn take_order(&mut self, order: &Order) {
        if let Directive::Run(admitted) = &order.directive
            && *admitted != self.admitted
        {
            self.admitted = admitted.clone();
        }
        self.resize_ordered(&order.resize);
        let Some(desired) = &order.desired else { return };
        // Volumes may show the pod's own labels and annotations.
        let same = |old: &DesiredPod| {
            let (old, new) = (&old.pod, &desired.pod);
            Arc::ptr_eq(old, new)
                || (old.metadata.labels == new.metadata.labels
                    && old.metadata.annotations == new.metadata.annotations)
        };
        let shown = self.desired.as_ref().is_none_or(same);
        if let Some(old) = self.desired.replace(desired.clone()) {
            self.forget_what_was_corrected(&old);
        }
        if !shown {
            self.invalidate_volumes(Change::PodFields);
        }
    }

    /// A container with another image or other resources is another try: it does not wait out what the old one earned.
    fn forget_what_was_corrected(&mut self, old: &DesiredPod) {
        let Some(new) = self.desired.as_ref().filter(|new| !Arc::ptr_eq(&old.pod, &new.pod)) else { return };
        for (name, memory) in &mut self.containers {
            let (Some(old), Some(new)) = (old.container(name), new.container(name)) else { continue };
            if old.image != new.image {
                memory.image_backoff = Backoff::default();
            }
            if old.image != new.image || old.resources != new.resources {
                memory.crash_backoff = Backoff::default();
                // Other resources do not bring an image that does not come.
                memory.waiting.take_if(|w| old.image != new.image || !is_image_reason(&w.reason));
            }
        }
    }

    /// Moves on to the next stage of the pod's life, with the event that says so where nobody else does.
    pub fn enter(&mut self, next: Lifecycle) -> Option<PlannedEvent> {
        if next == self.lifecycle {
            return None;
        }
        let before = std::mem::replace(&mut self.lifecycle, next);
        // What failed before does not hold back what is to be done now.
        self.retry.succeeded();
        let end = self.lifecycle.end().filter(|_| before.is_syncing());
        let Some(TerminationReason::Evicted { reason, message }) = end else { return None };
        (reason == DEADLINE_EXCEEDED).then(|| PlannedEvent::normal(DEADLINE_EXCEEDED, message.clone()))
    }

    /// The runtime was asked how the pod stands.
    pub fn observed(&mut self, observed: &ObservedPod) {
        self.instances.retain(|id, i| i.hook_running || observed.containers.iter().any(|c| c.id == *id));
        for (name, memory) in &mut self.containers {
            let another = observed.latest(name).filter(|c| c.state != ContainerState::Created);
            memory.restart.take_if(|(ended, _)| another.is_some_and(|c| c.id != *ended));
        }
        // What could not be made or started in a sandbox that is dead now may be tried at once in the next one.
        if observed.latest_sandbox().is_some_and(|s| s.state == SandboxState::NotReady) {
            for memory in self.containers.values_mut() {
                memory
                    .waiting
                    .take_if(|w| ["CreateContainerError", "RunContainerError"].contains(&w.reason.as_str()));
            }
        }
    }

    /// Dead instances whose termination message was not read yet.
    pub fn unread_messages<'a>(
        &'a self,
        observed: &'a ObservedPod,
    ) -> impl Iterator<Item = &'a ObservedContainer> {
        observed
            .containers
            .iter()
            .filter(|c| c.state == ContainerState::Exited && self.termination_message(&c.id).is_none())
    }

    pub fn message_read(&mut self, id: ContainerId, message: String) {
        self.instances.entry(id).or_default().termination_message = Some(message);
    }

    /// Something that the pod refers to has changed: volumes that show it follow, and whoever waited for it tries at once.
    pub fn object_changed(&mut self, change: Change<'_>) {
        self.invalidate_volumes(change);
        for memory in self.containers.values_mut() {
            memory.waiting.take_if(|w| w.reason == "CreateContainerConfigError");
        }
        self.retry.succeeded();
    }

    fn invalidate_volumes(&mut self, change: Change<'_>) {
        let volumes = self.desired.as_ref().map_or(&[][..], DesiredPod::volumes);
        self.volumes.invalidate(volumes, change);
    }

    /// Volumes whose time has come are due from now on.
    pub fn refresh_volumes(&mut self, now: Timestamp) {
        let volumes = self.desired.as_ref().map_or(&[][..], DesiredPod::volumes);
        self.volumes.review(volumes, now);
    }

    /// What mounting means in this round. Where nothing is due, a sandbox is to be made: then all volumes are prepared
    /// again, since whoever took the sandbox before it may have taken mounts too.
    pub fn plan_volumes(&mut self, now: Timestamp) -> VolumePlan {
        let volumes = self.desired.as_ref().map_or(&[][..], DesiredPod::volumes);
        let plan = self.volumes.plan(volumes, now);
        if !plan.is_empty() || self.volumes.state != VolumesState::Ready {
            return plan;
        }
        self.volumes.recheck();
        self.volumes.plan(volumes, now)
    }

    /// After a restart of the agent a crash loop goes on where it was.
    pub(super) fn resume_backoff(&mut self, observed: &ObservedPod) {
        for c in newest_dead(observed) {
            let wanted = self.desired.as_ref().and_then(|d| d.container(&c.name)).map(container_hash);
            if wanted.is_some() && c.hash.is_some() && wanted != c.hash {
                continue;
            }
            let resumed = Backoff::resumed(self.crash_policy.0, c.attempt, c.up_time());
            self.containers.entry(c.name.clone()).or_default().crash_backoff = resumed;
        }
    }

    /// What the agent before has ended for a restart, and held back, is known from the status: nothing else waits after
    /// its end for another start.
    pub(super) fn resume_restarts(&mut self, observed: &ObservedPod) {
        let status = self.previous_status.clone();
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let held = all.filter(|s| s.state.as_ref().is_some_and(|s| s.waiting.is_some()));
        let held: Vec<&str> = held
            .filter_map(|s| s.last_state.as_ref()?.terminated.as_ref()?.container_id.as_deref())
            .filter_map(|id| id.rsplit('/').next())
            .collect();
        // One that waits to restart all of them still asks for it.
        let asks = |c: &ObservedContainer| {
            let wanted = self.desired.as_ref().and_then(|d| d.container(&c.name));
            wanted.is_some_and(|wanted| restarts_all_after(wanted, c.exit_code))
        };
        let held: Vec<_> =
            newest_dead(observed).filter(|c| held.contains(&c.id.as_str()) && !asks(c)).collect();
        for c in held {
            let restart = Restart { counted_from: c.finished_at };
            self.containers.entry(c.name.clone()).or_default().restart = Some((c.id.clone(), restart));
        }
    }

    /// An image that failed to pull is in back-off from the next round on, and that is what status says then.
    pub fn soften_image_failures(&mut self) -> Vec<PlannedEvent> {
        let mut events = vec![];
        for (name, memory) in &mut self.containers {
            let Some(waiting) = memory.waiting.as_mut().filter(|w| is_failed_pull(&w.reason)) else {
                continue;
            };
            let container = self.desired.as_ref().and_then(|d| d.container(name));
            let own = container.and_then(|c| c.image.as_deref()).unwrap_or_default();
            let image = image_of_volume(&waiting.message).unwrap_or(own);
            let message = format!("Back-off pulling image {image:?}");
            waiting.message = format!("{message}: {}: {}", waiting.reason, waiting.message);
            waiting.reason = PULL_BACK_OFF.into();
            events.push(PlannedEvent::normal("BackOff", message).of(name));
            events.push(PlannedEvent::warning("Failed", format!("Error: {PULL_BACK_OFF}")).of(name));
        }
        events
    }

    /// Once for each instance that is held back, not once for each round in which it is.
    pub fn report_backoff(&mut self, plan: &Plan, observed: &ObservedPod) -> Vec<PlannedEvent> {
        let mut events = vec![];
        for name in plan.waiting.keys() {
            let Some(dead) = observed.latest(name) else { continue };
            let memory = self.containers.entry(name.clone()).or_default();
            if memory.backoff_reported.as_ref() == Some(&dead.id) {
                continue;
            }
            memory.backoff_reported = Some(dead.id.clone());
            let pod = format!("{}_{}({})", observed.name, observed.namespace, observed.uid);
            let message = format!("Back-off restarting failed container {name} in pod {pod}");
            events.push(PlannedEvent::warning("BackOff", message).of(name));
        }
        events
    }

    /// The event of the first attempt to stop an instance; `None` for every further one, which runs no preStop hook.
    pub fn begin_stop(&mut self, kill: &Kill) -> Option<PlannedEvent> {
        if let Some(restart) = kill.restart
            && self.restart_ordered(&kill.id).is_none()
        {
            self.containers.entry(kill.name.clone()).or_default().restart = Some((kill.id.clone(), restart));
        }
        let memory: &mut InstanceMemory = self.instances.entry(kill.id.clone()).or_default();
        let first = !std::mem::replace(&mut memory.stop_begun, true);
        first.then(|| PlannedEvent::normal("Killing", kill.message.clone()).of(&kill.name))
    }

    /// A start that was given up half-way can leave a task that only ends with the sandbox around it.
    pub fn only_its_sandbox_can_end(
        &self,
        stuck: &ObservedContainer,
        observed: &ObservedPod,
        now: Timestamp,
    ) -> bool {
        let beside = observed.running().any(|r| r.sandbox_id == stuck.sandbox_id);
        let persistent =
            self.retry.failures() >= REMOVALS && now.duration_since(stuck.created_at) > GIVING_UP;
        persistent && stuck.state == ContainerState::Created && !(beside && self.lifecycle.is_syncing())
    }

    /// All actions of a plan, or as many as were due in one round, were carried out.
    pub fn round_succeeded(&mut self) {
        self.retry.succeeded();
    }
}

/// The newest instances of all containers, of those that have ended.
fn newest_dead(observed: &ObservedPod) -> impl Iterator<Item = &ObservedContainer> {
    let newest = |c: &&ObservedContainer| observed.latest(&c.name).is_some_and(|latest| latest.id == c.id);
    observed.containers.iter().filter(|c| c.state == ContainerState::Exited).filter(newest)
}
