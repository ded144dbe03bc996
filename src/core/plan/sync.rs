//! A pod that is to run: cgroup, volumes, sandbox, init containers in order, then everything else.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;

use super::container::restarts_when_ended;
use super::containers::{ContainerPass, kill};
use super::kill::take_turns;
use super::lifecycle::active_deadline;
use super::{Action, Kill, Plan, PlannedEvent, Restart, reset};
use crate::backoff::CRASH;
use crate::desired::DesiredPod;
use crate::facts::Facts;
use crate::ids::SandboxId;
use crate::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox, SandboxState};
use crate::pod::{PodState, VolumesState};

pub(super) fn plan(state: &PodState, observed: &ObservedPod, facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let Some(desired) = &state.desired else { return plan };
    let Some(spec) = &desired.pod.spec else { return plan };
    if let Some(at) = active_deadline(desired, state) {
        plan.requeue(at);
    }

    let usable = usable_sandbox(spec, observed);
    let pass = ContainerPass { spec, desired, observed, state, facts, sandbox: usable.map(|s| &s.id) };
    if let Some(actions) = reset::plan(&pass) {
        plan.actions = actions;
        return plan;
    }
    if let Some(sandbox) = usable {
        if state.volumes.state != VolumesState::Ready {
            // The agent was restarted, or what a volume shows has changed. Running containers do not wait for it.
            plan.actions.push(Action::EnsureCgroup);
            plan.actions.push(Action::MountVolumes);
        }
        pass.superseded(&mut plan);
        pass.containers(&mut plan);
        pass.resize(&mut plan);
        forget_the_past(observed, &sandbox.id, &mut plan);
        return plan;
    }

    // No sandbox, or one that died: nothing of it can be kept, because its network namespace is gone.
    let mut stale: Vec<Kill> = alive(observed).map(|c| leave_sandbox(c, desired, spec, observed)).collect();
    take_turns(spec, &mut stale);
    let all_ended = stale.is_empty();
    if !all_ended {
        plan.actions.push(Action::KillContainers(stale));
    }
    let unborn = observed.containers.iter().filter(|c| c.state == ContainerState::Created);
    plan.actions.extend(unborn.map(|c| Action::RemoveContainer { id: c.id.clone() }));
    for s in observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready) {
        plan.actions.push(Action::StopSandbox { id: s.id.clone() });
    }
    // How they end may be the end of the pod.
    if !all_ended {
        return plan;
    }
    let attempt = observed.latest_sandbox().map_or(0, |s| s.attempt + 1);
    if attempt > 0 {
        let message = "Pod sandbox changed, it will be killed and re-created.";
        plan.events.push(PlannedEvent::normal("SandboxChanged", message));
    }
    if let Some(at) = state.sandbox.failure.as_ref().and_then(|w| w.retry_at).filter(|at| *at > facts.now) {
        plan.requeue(at);
        return plan;
    }
    if let Some(at) = observed.latest_sandbox().and_then(not_before).filter(|at| *at > facts.now) {
        plan.requeue(at);
        return plan;
    }
    // Containers that finished for good in the old sandbox need no new one.
    let mut rest = Plan::default();
    pass.containers(&mut rest);
    if rest.actions.is_empty() {
        plan.waiting = rest.waiting;
        if let Some(at) = rest.requeue_at {
            plan.requeue(at);
        }
        return plan;
    }
    plan.actions.extend([Action::EnsureCgroup, Action::MountVolumes, Action::CreateSandbox { attempt }]);
    plan.actions.extend(rest.actions);
    plan.waiting = rest.waiting;
    plan
}

/// The one sandbox that containers can be started in. Two ready ones are one too many: neither is trusted.
fn usable_sandbox<'a>(spec: &PodSpec, observed: &'a ObservedPod) -> Option<&'a ObservedSandbox> {
    let ready = observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
    let latest = observed.latest_sandbox()?;
    let has_network = spec.host_network == Some(true) || !latest.ips.is_empty();
    (ready == 1 && latest.state == SandboxState::Ready && has_network).then_some(latest)
}

/// The first sandbox that dies is replaced at once; one that keeps dying is given time between.
fn not_before(latest: &ObservedSandbox) -> Option<Timestamp> {
    if latest.attempt == 0 {
        return None;
    }
    latest.created_at.checked_add(CRASH.first).ok()
}

/// One that restarts does so in the next sandbox, whatever it makes of its end.
fn leave_sandbox(
    c: &ObservedContainer,
    desired: &DesiredPod,
    spec: &PodSpec,
    observed: &ObservedPod,
) -> Kill {
    let newest = observed.latest(&c.name).is_some_and(|latest| latest.id == c.id);
    let again = newest && desired.container(&c.name).is_some_and(|wanted| restarts_when_ended(spec, wanted));
    let message = "The pod's sandbox is gone, so the container is stopped".to_owned();
    Kill { restart: again.then_some(Restart { counted_from: None }), ..kill(c, spec, message) }
}

fn alive(observed: &ObservedPod) -> impl Iterator<Item = &ObservedContainer> {
    observed
        .containers
        .iter()
        .filter(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
}

/// Keeps one dead instance of each container, for its log and last state, and no sandbox but the present one.
fn forget_the_past(observed: &ObservedPod, present: &SandboxId, plan: &mut Plan) {
    let mut kept: Vec<&str> = vec![];
    let mut dead: Vec<_> = observed.containers.iter().filter(|c| c.state == ContainerState::Exited).collect();
    dead.sort_by_key(|c| std::cmp::Reverse((c.attempt, c.created_at)));
    let mut busy: Vec<&SandboxId> = vec![];
    for c in dead {
        if kept.contains(&c.name.as_str()) {
            plan.actions.push(Action::RemoveContainer { id: c.id.clone() });
        } else {
            kept.push(&c.name);
            busy.push(&c.sandbox_id);
        }
    }
    for s in &observed.sandboxes {
        if s.id != *present && s.state == SandboxState::NotReady && !busy.contains(&&s.id) {
            plan.actions.push(Action::RemoveSandbox { id: s.id.clone() });
        }
    }
}
