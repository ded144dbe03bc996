//! A pod that is to go: its processes first, in order, then what they leave behind.

use jiff::{SignedDuration, Timestamp};

use super::container::{ContainerKind, init_kind};
use super::{Action, Kill, Plan};
use crate::desired::{DesiredPod, TerminationReason};
use crate::observed::{ContainerState, ObservedContainer, ObservedPod, SandboxState};
use crate::pod::{CleanUp, PodState};

/// Main containers together, then the sidecars one by one in reverse order, all within one grace period.
pub(super) fn stop(state: &PodState, observed: &ObservedPod, now: Timestamp, deadline: Timestamp) -> Plan {
    let mut plan = Plan::default();
    for c in observed.containers.iter().filter(|c| c.state == ContainerState::Created) {
        plan.actions.push(Action::RemoveContainer { id: c.id.clone() });
    }
    let alive: Vec<_> = observed
        .containers
        .iter()
        .filter(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
        .collect();
    let sidecars = sidecars(state.desired.as_ref());
    let (last, first): (Vec<_>, Vec<_>) =
        alive.into_iter().partition(|c| sidecars.contains(&c.name.as_str()));
    let batch = if first.is_empty() {
        let in_order = last.into_iter().max_by_key(|c| sidecars.iter().position(|s| *s == c.name));
        in_order.into_iter().collect()
    } else {
        first
    };
    if !batch.is_empty() {
        let left = remaining(now, deadline);
        plan.actions.push(Action::KillContainers(batch.into_iter().map(|c| kill(c, left)).collect()));
    }
    plan
}

/// Nothing runs any more. A completed pod keeps its containers for their logs and states until it is deleted.
pub(super) fn clean_up(observed: &ObservedPod, reason: &TerminationReason, done: &CleanUp) -> Plan {
    let mut plan = Plan::default();
    let ready = observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready);
    plan.actions.extend(ready.map(|s| Action::StopSandbox { id: s.id.clone() }));
    if *done == CleanUp::Pending {
        plan.actions.extend([Action::UnmountVolumes, Action::RemoveCgroup]);
    }
    let reported = match done {
        CleanUp::Gone => return plan,
        CleanUp::Finished(reported) => reported == reason,
        CleanUp::Pending | CleanUp::Released => false,
    };
    if !reported {
        plan.actions.push(Action::Finish);
    }
    if matches!(reason, TerminationReason::Deleted | TerminationReason::Orphaned) {
        // After the final status: nobody who waits for the object to go has to wait for this too.
        let homeless =
            observed.containers.iter().filter(|c| !observed.sandboxes.iter().any(|s| s.id == c.sandbox_id));
        plan.actions.extend(homeless.map(|c| Action::RemoveContainer { id: c.id.clone() }));
        plan.actions.extend(observed.sandboxes.iter().map(|s| Action::RemoveSandbox { id: s.id.clone() }));
        plan.actions.push(Action::RemoveDirectories);
    }
    plan
}

fn sidecars(desired: Option<&DesiredPod>) -> Vec<&str> {
    let spec = desired.and_then(|d| d.pod.spec.as_ref());
    let inits = spec.into_iter().flat_map(|s| s.init_containers.iter().flatten());
    inits.filter(|c| init_kind(c) == ContainerKind::Sidecar).map(|c| c.name.as_str()).collect()
}

/// At least a second, so that a process always sees SIGTERM before SIGKILL.
fn remaining(now: Timestamp, deadline: Timestamp) -> i64 {
    let left = deadline.duration_since(now);
    let whole = if left.subsec_nanos() > 0 { left.as_secs() + 1 } else { left.as_secs() };
    whole.max(SignedDuration::from_secs(1).as_secs())
}

fn kill(c: &ObservedContainer, grace_seconds: i64) -> Kill {
    Kill {
        id: c.id.clone(),
        name: c.name.clone(),
        grace_seconds,
        message: format!("Stopping container {}", c.name),
        restart: None,
    }
}
