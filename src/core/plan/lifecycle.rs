//! One step down a pod's life, never up.

use jiff::{SignedDuration, Timestamp};

use super::container::{ContainerKind, init_kind, restarts_after};
use crate::desired::{DesiredPod, Lifecycle, TerminationReason};
use crate::facts::Facts;
use crate::observed::{ContainerState, ObservedPod};

/// Where the pod's life stands now that `desired` and `observed` are known. `facts.lifecycle` is where it stood.
pub fn advance(desired: Option<&DesiredPod>, observed: &ObservedPod, facts: &Facts) -> Lifecycle {
    match &facts.lifecycle {
        Lifecycle::Syncing => match why_stop(desired, observed, facts) {
            Some((reason, grace)) => {
                let deadline = facts.now.checked_add(grace).unwrap_or(facts.now);
                settle(Lifecycle::Terminating { reason, deadline }, observed)
            }
            None => Lifecycle::Syncing,
        },
        Lifecycle::Terminating { reason, deadline } => {
            // A second deletion may shorten the grace period, and a completed pod may be deleted meanwhile.
            let (reason, deadline) = match deletion(desired, observed) {
                Some((r, grace)) => {
                    let sooner = facts.now.checked_add(grace).unwrap_or(facts.now).min(*deadline);
                    (stronger(reason, r), sooner)
                }
                None => (reason.clone(), *deadline),
            };
            settle(Lifecycle::Terminating { reason, deadline }, observed)
        }
        Lifecycle::Terminated { reason } => {
            let reason = match deletion(desired, observed) {
                Some((r, _)) => stronger(reason, r),
                None => reason.clone(),
            };
            settle(Lifecycle::Terminated { reason }, observed)
        }
    }
}

/// When `activeDeadlineSeconds` runs out, if it is set and the pod has started.
pub(super) fn active_deadline(desired: &DesiredPod, facts: &Facts) -> Option<Timestamp> {
    let seconds = desired.pod.spec.as_ref()?.active_deadline_seconds?;
    let start = facts.previous.start_time.as_ref()?.0;
    start.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// A pod whose last process is gone has terminated; one that shows a process again has not.
fn settle(next: Lifecycle, observed: &ObservedPod) -> Lifecycle {
    let alive = observed.containers.iter().any(|c| c.state != ContainerState::Exited);
    match next {
        Lifecycle::Terminating { reason, .. } if !alive => Lifecycle::Terminated { reason },
        other => other,
    }
}

fn stronger(old: &TerminationReason, new: TerminationReason) -> TerminationReason {
    match (old, &new) {
        // How it ended stays true after the object is deleted too, but a gone object needs no last word.
        (
            TerminationReason::Evicted { .. } | TerminationReason::Completed | TerminationReason::Deleted,
            _,
        ) => new,
        (TerminationReason::Orphaned, _) => TerminationReason::Orphaned,
    }
}

fn why_stop(
    desired: Option<&DesiredPod>,
    observed: &ObservedPod,
    facts: &Facts,
) -> Option<(TerminationReason, SignedDuration)> {
    if let Some(deleted) = deletion(desired, observed) {
        return Some(deleted);
    }
    let desired = desired?;
    let spec = desired.pod.spec.as_ref()?;
    let grace = SignedDuration::from_secs(spec.termination_grace_period_seconds.unwrap_or(30).max(1));
    if active_deadline(desired, facts).is_some_and(|at| facts.now >= at) {
        let reason = TerminationReason::Evicted {
            reason: "DeadlineExceeded".into(),
            message: "Pod was active on the node longer than the specified deadline".into(),
        };
        return Some((reason, grace));
    }
    if matches!(facts.previous.phase.as_deref(), Some("Succeeded" | "Failed")) || completed(desired, observed)
    {
        return Some((TerminationReason::Completed, grace));
    }
    None
}

/// The sources' word: the object is being deleted, or is gone.
fn deletion(
    desired: Option<&DesiredPod>,
    observed: &ObservedPod,
) -> Option<(TerminationReason, SignedDuration)> {
    let Some(desired) = desired else {
        let grace = observed
            .containers
            .iter()
            .find_map(|c| c.deletion_grace_seconds.or(c.termination_grace_seconds))
            .unwrap_or(30);
        return Some((TerminationReason::Orphaned, SignedDuration::from_secs(grace.max(1))));
    };
    let meta = &desired.pod.metadata;
    meta.deletion_timestamp.as_ref()?;
    let spec_grace = desired.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    let grace = meta.deletion_grace_period_seconds.or(spec_grace).unwrap_or(30);
    Some((TerminationReason::Deleted, SignedDuration::from_secs(grace.max(1))))
}

/// Has every container finished for good, or an init container failed for good?
fn completed(desired: &DesiredPod, observed: &ObservedPod) -> bool {
    let Some(spec) = &desired.pod.spec else { return false };
    for c in spec.init_containers.iter().flatten() {
        let failed_for_good = init_kind(c) == ContainerKind::Init
            && observed.latest(&c.name).is_some_and(|o| {
                o.state == ContainerState::Exited
                    && o.exit_code != 0
                    && !restarts_after(spec, c, ContainerKind::Init, o.exit_code)
            });
        if failed_for_good {
            return true;
        }
    }
    spec.containers.iter().all(|c| {
        observed.latest(&c.name).is_some_and(|o| {
            o.state == ContainerState::Exited && !restarts_after(spec, c, ContainerKind::Main, o.exit_code)
        })
    })
}
