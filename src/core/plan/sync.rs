//! A pod that is to run: cgroup, volumes, sandbox, init containers in order, then everything else.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerState as ContainerState_, ContainerStatus, PodSpec};

use super::container::{ContainerKind, init_kind, restarts_after};
use super::lifecycle::active_deadline;
use super::{Action, Kill, Plan, PlannedEvent};
use crate::backoff::CRASH;
use crate::desired::DesiredPod;
use crate::facts::{Facts, VolumesState, Waiting};
use crate::hash::container_hash;
use crate::ids::SandboxId;
use crate::observed::{ContainerState, ObservedContainer, ObservedPod, ObservedSandbox, SandboxState};

pub(super) fn plan(desired: &DesiredPod, observed: &ObservedPod, facts: &Facts) -> Plan {
    let mut plan = Plan::default();
    let Some(spec) = &desired.pod.spec else { return plan };
    if let Some(at) = active_deadline(desired, facts) {
        plan.requeue(at);
    }

    if let Some(sandbox) = usable_sandbox(spec, observed) {
        let look = Look { spec, desired, observed, facts, sandbox: Some(&sandbox.id) };
        if facts.volumes != VolumesState::Ready {
            // The agent was restarted, or what a volume shows has changed. Running containers do not wait for it.
            plan.actions.push(Action::EnsureCgroup);
            plan.actions.push(Action::MountVolumes);
        }
        look.superseded(&mut plan);
        look.containers(&mut plan);
        forget_the_past(observed, &sandbox.id, &mut plan);
        return plan;
    }

    // No sandbox, or one that died: nothing of it can be kept, because its network namespace is gone.
    let stale: Vec<Kill> = alive(observed)
        .map(|c| {
            kill(c, spec, "The pod's sandbox is gone, so the container is stopped and started again".into())
        })
        .collect();
    if !stale.is_empty() {
        plan.actions.push(Action::KillContainers(stale));
    }
    let unborn = observed.containers.iter().filter(|c| c.state == ContainerState::Created);
    plan.actions.extend(unborn.map(|c| Action::RemoveContainer { id: c.id.clone() }));
    for s in observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready) {
        plan.actions.push(Action::StopSandbox { id: s.id.clone() });
    }
    let attempt = observed.latest_sandbox().map_or(0, |s| s.attempt + 1);
    if attempt > 0 {
        plan.events.push(PlannedEvent {
            warning: false,
            reason: "SandboxChanged",
            message: "Pod sandbox changed, it will be killed and re-created.".into(),
            container: None,
        });
    }
    if let Some(at) = facts.sandbox_failure.as_ref().and_then(|w| w.retry_at).filter(|at| *at > facts.now) {
        plan.requeue(at);
        return plan;
    }
    if let Some(at) = observed.latest_sandbox().and_then(not_before).filter(|at| *at > facts.now) {
        plan.requeue(at);
        return plan;
    }
    // Containers that finished for good in the old sandbox need no new one.
    let look = Look { spec, desired, observed, facts, sandbox: None };
    let mut rest = Plan::default();
    look.containers(&mut rest);
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

fn alive(observed: &ObservedPod) -> impl Iterator<Item = &ObservedContainer> {
    observed
        .containers
        .iter()
        .filter(|c| matches!(c.state, ContainerState::Running | ContainerState::Unknown))
}

fn kill(c: &ObservedContainer, spec: &PodSpec, message: String) -> Kill {
    let grace_seconds = spec.termination_grace_period_seconds.unwrap_or(30).max(1);
    Kill { id: c.id.clone(), name: c.name.clone(), grace_seconds, message }
}

/// One pass over the containers of a pod, against the sandbox they live in (or against none yet).
struct Look<'a> {
    spec: &'a PodSpec,
    desired: &'a DesiredPod,
    observed: &'a ObservedPod,
    facts: &'a Facts,
    sandbox: Option<&'a SandboxId>,
}

/// What one container amounts to after a look at it.
enum Verdict {
    /// As it should be, and what comes after it may go on.
    Settled,
    /// Being started, held back, or not ready to let the next one go on.
    Pending,
}

impl<'a> Look<'a> {
    fn containers(&self, plan: &mut Plan) {
        let initialized = self.initialized();
        for c in self.spec.init_containers.iter().flatten() {
            let kind = init_kind(c);
            if initialized && kind == ContainerKind::Init {
                self.end_late_init(&c.name, plan);
                continue;
            }
            if let Verdict::Pending = self.one(c, kind, plan)
                && !initialized
            {
                return;
            }
        }
        for c in &self.spec.containers {
            self.one(c, ContainerKind::Main, plan);
        }
        for e in self.spec.ephemeral_containers.iter().flatten() {
            if self.observed.latest(&e.name).is_none() {
                self.start(&e.name, ContainerKind::Ephemeral, None, plan);
            }
        }
    }

    /// The pod is past its init containers: one that shows up now is left over from an agent that died.
    fn end_late_init(&self, name: &str, plan: &mut Plan) {
        let Some(found) = self.here(name) else { return };
        match found.state {
            ContainerState::Exited => {}
            ContainerState::Created => plan.actions.push(Action::RemoveContainer { id: found.id.clone() }),
            ContainerState::Running | ContainerState::Unknown => {
                let message = format!("Init container {name} is no longer needed, so it is stopped");
                plan.actions.push(Action::KillContainers(vec![kill(found, self.spec, message)]));
            }
        }
    }

    /// Instances that another one has replaced, or that live in a sandbox that is gone, do not go on beside it.
    fn superseded(&self, plan: &mut Plan) {
        for c in &self.observed.containers {
            let named = self.here(&c.name).map(|h| &h.id) == Some(&c.id);
            match c.state {
                _ if named => {}
                ContainerState::Created => plan.actions.push(Action::RemoveContainer { id: c.id.clone() }),
                ContainerState::Running | ContainerState::Unknown => {
                    let message = format!("Container {} was replaced, so the older one is stopped", c.name);
                    plan.actions.push(Action::KillContainers(vec![kill(c, self.spec, message)]));
                }
                ContainerState::Exited => {}
            }
        }
    }

    /// Once a main container exists in this sandbox the init containers are done, even if the runtime has since
    /// forgotten them.
    fn initialized(&self) -> bool {
        self.spec.containers.iter().any(|c| self.here(&c.name).is_some())
    }

    /// The newest instance of a container in the present sandbox.
    fn here(&self, name: &str) -> Option<&'a ObservedContainer> {
        let sandbox = self.sandbox?;
        let newest = self.observed.containers.iter().filter(|c| c.name == name && c.sandbox_id == *sandbox);
        newest.max_by_key(|c| (c.attempt, c.created_at))
    }

    fn one(&self, c: &Container, kind: ContainerKind, plan: &mut Plan) -> Verdict {
        let Some(found) = self.here(&c.name) else {
            // In a new sandbox: init containers run again, and so do others unless they have finished for good.
            let before = self.observed.latest(&c.name);
            let over = kind == ContainerKind::Main
                && before.is_some_and(|o| {
                    o.state == ContainerState::Exited && !restarts_after(self.spec, c, kind, o.exit_code)
                });
            if over {
                return Verdict::Settled;
            }
            self.start_after(&c.name, kind, before, plan);
            return Verdict::Pending;
        };
        match found.state {
            ContainerState::Running => self.running(c, kind, found, plan),
            ContainerState::Exited if kind == ContainerKind::Init && found.exit_code == 0 => Verdict::Settled,
            ContainerState::Exited if restarts_after(self.spec, c, kind, found.exit_code) => {
                self.start_after(&c.name, kind, Some(found), plan);
                Verdict::Pending
            }
            // Finished for good. For an init container that is a failed pod, which `advance` has seen before.
            ContainerState::Exited if kind == ContainerKind::Init => Verdict::Pending,
            ContainerState::Exited => Verdict::Settled,
            // The agent died between create and start. It never ran, so it is no restart.
            ContainerState::Created => {
                plan.actions.push(Action::RemoveContainer { id: found.id.clone() });
                self.start_as(&c.name, kind, found.attempt, None, plan);
                Verdict::Pending
            }
            ContainerState::Unknown => {
                let message = format!("Container {} is in an unknown state, so it is stopped", c.name);
                plan.actions.push(Action::KillContainers(vec![kill(found, self.spec, message)]));
                Verdict::Pending
            }
        }
    }

    fn running(
        &self,
        c: &Container,
        kind: ContainerKind,
        found: &ObservedContainer,
        plan: &mut Plan,
    ) -> Verdict {
        let verdicts = self.facts.probes.get(&found.id);
        let changed = found.hash.as_deref().is_some_and(|h| h != container_hash(c));
        if changed {
            let message = format!("Container {} definition changed, will be restarted", c.name);
            plan.actions.push(Action::KillContainers(vec![kill(found, self.spec, message)]));
            return Verdict::Pending;
        }
        if let Some(why) = verdicts.and_then(|v| v.unhealthy.as_ref()) {
            let mut k = kill(found, self.spec, format!("Container {} {why}, will be restarted", c.name));
            let own = [&c.liveness_probe, &c.startup_probe];
            if let Some(grace) = own.into_iter().flatten().find_map(|p| p.termination_grace_period_seconds) {
                k.grace_seconds = grace.max(1);
            }
            plan.actions.push(Action::KillContainers(vec![k]));
            return Verdict::Pending;
        }
        match kind {
            // A sidecar lets the next one go on once it has started; an init container only once it is done.
            ContainerKind::Sidecar if verdicts.is_none_or(|v| v.started) => Verdict::Settled,
            ContainerKind::Main | ContainerKind::Ephemeral => Verdict::Settled,
            ContainerKind::Init | ContainerKind::Sidecar => Verdict::Pending,
        }
    }

    /// Starts what follows `before`, unless it crashed and is serving its back-off.
    fn start_after(
        &self,
        name: &str,
        kind: ContainerKind,
        before: Option<&ObservedContainer>,
        plan: &mut Plan,
    ) {
        // What died with its sandbox is not to blame.
        let blame =
            |b: &&ObservedContainer| b.state == ContainerState::Exited && Some(&b.sandbox_id) == self.sandbox;
        let held = before.filter(blame).and_then(|b| self.crash_wait(name, b));
        if let Some(waiting) = held {
            if let Some(at) = waiting.retry_at {
                plan.requeue(at);
            }
            plan.waiting.insert(name.to_owned(), waiting);
            return;
        }
        self.start(name, kind, before, plan);
    }

    fn crash_wait(&self, name: &str, before: &ObservedContainer) -> Option<Waiting> {
        let backoff = self.facts.crash_backoff.get(name)?;
        let retry_at = backoff.retry_at(before.finished_at.unwrap_or(before.created_at));
        if retry_at <= self.facts.now {
            return None;
        }
        let pod = format!("{}_{}({})", self.desired.name(), self.desired.namespace(), self.desired.uid);
        let message =
            format!("back-off {} restarting failed container={name} pod={pod}", short(backoff.delay()));
        Some(Waiting { reason: "CrashLoopBackOff".into(), message, retry_at: Some(retry_at) })
    }

    fn start(&self, name: &str, kind: ContainerKind, before: Option<&ObservedContainer>, plan: &mut Plan) {
        // What the runtime has forgotten is remembered by the status.
        let told = self.facts.previous.container_statuses.iter().flatten();
        let told = told.chain(self.facts.previous.init_container_statuses.iter().flatten());
        let told = told
            .filter(|s| s.name == name && has_run(s))
            .map(|s| u32::try_from(s.restart_count).unwrap_or(0) + 1)
            .max();
        let attempt = before.map(|b| b.attempt + 1).max(told).unwrap_or(0);
        self.start_as(name, kind, attempt, before, plan);
    }

    fn start_as(
        &self,
        name: &str,
        kind: ContainerKind,
        attempt: u32,
        before: Option<&ObservedContainer>,
        plan: &mut Plan,
    ) {
        if let Some(at) = self.held_back(name) {
            plan.requeue(at);
            return;
        }
        plan.actions.push(Action::StartContainer {
            name: name.to_owned(),
            kind,
            attempt,
            after: before.map(|b| b.id.clone()),
        });
    }

    /// An image that does not pull or a secret that is missing holds back its own container only.
    fn held_back(&self, name: &str) -> Option<Timestamp> {
        self.facts.waiting.get(name).and_then(|w| w.retry_at).filter(|at| *at > self.facts.now)
    }
}

/// An instance that was created but never started is no reason to count a restart.
fn has_run(status: &ContainerStatus) -> bool {
    let ran = |s: &ContainerState_| s.running.is_some() || s.terminated.is_some();
    status.state.as_ref().is_some_and(ran) || status.last_state.as_ref().is_some_and(ran)
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

/// 10s, 2m40s, 5m0s: the way people know it from every kubectl describe.
fn short(d: std::time::Duration) -> String {
    let s = d.as_secs();
    if s < 60 { format!("{s}s") } else { format!("{}m{}s", s / 60, s % 60) }
}
