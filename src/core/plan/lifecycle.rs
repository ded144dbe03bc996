//! One step down a pod's life, never up.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Container;

use super::container::{ContainerKind, init_kind};
use super::reset::askers;
use crate::admission::Rejection;
use crate::desired::{DesiredPod, Lifecycle, TerminationReason};
use crate::observed::{ContainerState, ObservedContainer, ObservedPod};
use crate::pod::{Directive, Eviction, Order, PodState};
use crate::status::is_finished;

/// The reason, and the event, of a pod that ran out of `activeDeadlineSeconds`.
pub(crate) const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";

/// Where the pod's life stands now that `order` and `observed` are known. `state.lifecycle` is where it stood.
pub fn advance(order: &Order, state: &PodState, observed: &ObservedPod, now: Timestamp) -> Lifecycle {
    let desired = order.desired.as_ref();
    match &state.lifecycle {
        Lifecycle::Syncing => match why_stop(order, state, observed, now) {
            Some(end) => {
                let deadline = end.deadline(now);
                settle(Lifecycle::Terminating { reason: end.reason, deadline }, observed)
            }
            None => Lifecycle::Syncing,
        },
        Lifecycle::Terminating { reason, deadline } => {
            // A second deletion may shorten the grace period, and a completed or evicted pod may be deleted meanwhile.
            let next = match (deletion(desired, observed), decided(order)) {
                (Some(end), _) => {
                    let deadline = end.deadline(now).min(*deadline);
                    Lifecycle::Terminating { reason: stronger(reason, end.reason), deadline }
                }
                // How the pod ends is settled by now; an eviction can only hurry it.
                (None, Some(end)) => {
                    let deadline = end.deadline(now).min(*deadline);
                    Lifecycle::Terminating { reason: reason.clone(), deadline }
                }
                (None, None) => state.lifecycle.clone(),
            };
            settle(next, observed)
        }
        Lifecycle::Terminated { reason } => {
            let reason = match deletion(desired, observed) {
                Some(end) => stronger(reason, end.reason),
                None => reason.clone(),
            };
            Lifecycle::Terminated { reason }
        }
    }
}

/// Why a pod is to end, and how long its processes have for it.
struct End {
    reason: TerminationReason,
    grace: SignedDuration,
}

impl End {
    fn new(reason: TerminationReason, grace: SignedDuration) -> Self {
        Self { reason, grace: grace.max(SignedDuration::from_secs(1)) }
    }

    fn deadline(&self, now: Timestamp) -> Timestamp {
        now.checked_add(self.grace).unwrap_or(now)
    }
}

/// When `activeDeadlineSeconds` runs out, if it is set and the pod has started.
pub(super) fn active_deadline(desired: &DesiredPod, state: &PodState) -> Option<Timestamp> {
    let seconds = desired.pod.spec.as_ref()?.active_deadline_seconds?;
    let start = state.previous_status.start_time.as_ref()?.0;
    start.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// A pod whose last process is gone has terminated. A container that was never started counts as one: it is removed first.
fn settle(next: Lifecycle, observed: &ObservedPod) -> Lifecycle {
    let alive = observed.containers.iter().any(|c| c.state != ContainerState::Exited);
    match next {
        Lifecycle::Terminating { reason, .. } if !alive => Lifecycle::Terminated { reason },
        other => other,
    }
}

fn stronger(old: &TerminationReason, new: TerminationReason) -> TerminationReason {
    match (old, &new) {
        // How it ended stays true after the object is deleted too, but a gone object needs no final status.
        (
            TerminationReason::Refused { .. }
            | TerminationReason::Evicted { .. }
            | TerminationReason::Completed
            | TerminationReason::Deleted,
            _,
        ) => new,
        (TerminationReason::Orphaned, _) => TerminationReason::Orphaned,
    }
}

fn why_stop(order: &Order, state: &PodState, observed: &ObservedPod, now: Timestamp) -> Option<End> {
    if let Some(deleted) = deletion(order.desired.as_ref(), observed) {
        return Some(deleted);
    }
    let desired = order.desired.as_ref()?;
    let finished = is_finished(&state.previous_status) || completed(desired, state, observed);
    // A pod that has ended by itself is neither evicted nor late any more.
    if let Some(decided) = decided(order).filter(|_| !finished) {
        return Some(decided);
    }
    if !finished && active_deadline(desired, state).is_some_and(|at| now >= at) {
        let reason = TerminationReason::Evicted {
            reason: DEADLINE_EXCEEDED.into(),
            message: "Pod was active on the node longer than the specified deadline".into(),
        };
        return Some(End::new(reason, desired.grace()));
    }
    finished.then(|| End::new(TerminationReason::Completed, desired.grace()))
}

/// The node's own decision that the pod is to end.
fn decided(order: &Order) -> Option<End> {
    match order.directive.clone() {
        Directive::Run(_) => None,
        Directive::Refuse(Rejection { reason, message }) => {
            let grace = order.desired.as_ref().map_or(SignedDuration::ZERO, DesiredPod::grace);
            Some(End::new(TerminationReason::Refused { reason, message }, grace))
        }
        Directive::Evict(Eviction { reason, message, grace }) => {
            let grace = SignedDuration::try_from(grace).unwrap_or(SignedDuration::MAX);
            Some(End::new(TerminationReason::Evicted { reason, message }, grace))
        }
    }
}

/// The sources' decision: the object is being deleted, or is gone.
fn deletion(desired: Option<&DesiredPod>, observed: &ObservedPod) -> Option<End> {
    let Some(desired) = desired else {
        let grace = observed
            .containers
            .iter()
            .find_map(|c| c.deletion_grace_seconds.or(c.termination_grace_seconds))
            .unwrap_or(30);
        return Some(End::new(TerminationReason::Orphaned, SignedDuration::from_secs(grace)));
    };
    let meta = &desired.pod.metadata;
    meta.deletion_timestamp.as_ref()?;
    let grace = meta.deletion_grace_period_seconds.map_or_else(|| desired.grace(), SignedDuration::from_secs);
    Some(End::new(TerminationReason::Deleted, grace))
}

/// Has every container finished for good, or an init container failed for good?
fn completed(desired: &DesiredPod, state: &PodState, observed: &ObservedPod) -> bool {
    let Some(spec) = &desired.pod.spec else { return false };
    // What ends for the restart of all does not end for good.
    if !askers(spec, state, observed).is_empty() {
        return false;
    }
    let over = |c: &Container, kind: ContainerKind, o: &ObservedContainer| {
        o.state == ContainerState::Exited && !state.restarts(spec, c, kind, o)
    };
    // Only the init container that was reached last is judged: those before it are done, and all are once a main
    // container exists.
    let sandbox = observed.latest_sandbox().map(|s| &s.id);
    let initialized =
        |c: &Container| observed.latest(&c.name).is_some_and(|o| Some(&o.sandbox_id) == sandbox);
    if !spec.containers.iter().any(initialized) {
        let mut inits = spec.init_containers.iter().flatten().rev();
        let reached = inits.find_map(|c| Some((c, observed.latest(&c.name)?)));
        if let Some((c, o)) = reached.filter(|(c, _)| init_kind(c) == ContainerKind::Init)
            && o.has_failed()
            && over(c, ContainerKind::Init, o)
        {
            return true;
        }
    }
    spec.containers.iter().all(|c| observed.latest(&c.name).is_some_and(|o| over(c, ContainerKind::Main, o)))
}
