//! A pod that is to go: its processes first, in order, then what they leave behind.

use jiff::{SignedDuration, Timestamp};

use super::kill::take_turns;
use super::{Action, Kill, Plan};
use crate::desired::TerminationReason;
use crate::observed::{ContainerState, ObservedContainer, ObservedPod, SandboxState};
use crate::pod::{CleanUp, PodState};

/// All at once, within one grace period. Sidecars run their hooks beside the others and get their signal after them.
pub(super) fn stop(state: &PodState, observed: &ObservedPod, now: Timestamp, deadline: Timestamp) -> Plan {
    let mut plan = Plan::default();
    for c in observed.containers.iter().filter(|c| c.state == ContainerState::Created) {
        plan.actions.push(Action::RemoveContainer { id: c.id.clone() });
    }
    let alive = |c: &&ObservedContainer| matches!(c.state, ContainerState::Running | ContainerState::Unknown);
    let left = remaining(now, deadline);
    let mut kills: Vec<Kill> = observed.containers.iter().filter(alive).map(|c| kill(c, left)).collect();
    // When the time is up nobody waits for anybody any more.
    if let Some(spec) = state.desired.as_ref().and_then(|d| d.pod.spec.as_ref()).filter(|_| now < deadline) {
        take_turns(spec, &mut kills);
    }
    if !kills.is_empty() {
        plan.actions.push(Action::KillContainers(kills));
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

/// At least a second, so that a preStop hook is begun in any case.
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
        after: vec![],
    }
}
