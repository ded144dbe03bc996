//! The containers of a pod that is to run, one after the other: which are started, which are ended, and which wait.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerState as ContainerState_, ContainerStatus, PodSpec};

use super::container::{ContainerKind, init_kind, restarts_when_ended};
use super::{Action, Kill, Plan, Restart};
use crate::allocation::{Verdict, resize, verdict};
use crate::desired::DesiredPod;
use crate::facts::Facts;
use crate::hash::container_hash;
use crate::ids::SandboxId;
use crate::observed::{ContainerState, ObservedContainer, ObservedPod};
use crate::pod::{PodState, Waiting};

/// One pass over the containers of a pod, against the sandbox they live in (or against none yet).
pub(super) struct ContainerPass<'a> {
    pub spec: &'a PodSpec,
    pub desired: &'a DesiredPod,
    pub observed: &'a ObservedPod,
    pub state: &'a PodState,
    pub facts: &'a Facts,
    pub sandbox: Option<&'a SandboxId>,
}

/// What one container amounts to in a pass.
enum Progress {
    /// As it should be, and what comes after it may go on.
    Settled,
    /// Being started, held back, or not ready to let the next one go on.
    Pending,
}

impl<'a> ContainerPass<'a> {
    pub fn containers(&self, plan: &mut Plan) {
        // They are there to look at a pod that is stuck, so they wait for nothing but a sandbox to look at.
        let guests = self.spec.ephemeral_containers.iter().flatten().filter(|_| self.sandbox.is_some());
        for guest in guests.filter(|e| self.observed.latest(&e.name).is_none()) {
            self.start(&guest.name, ContainerKind::Ephemeral, None, None, plan);
        }
        if let Progress::Settled = self.init_containers(plan) {
            for c in &self.spec.containers {
                self.one(c, ContainerKind::Main, plan);
            }
        }
    }

    /// One after the other. Those before the last one that is there are done, even if the runtime has since forgotten them.
    fn init_containers(&self, plan: &mut Plan) -> Progress {
        let inits = self.spec.init_containers.as_deref().unwrap_or_default();
        let reached = if self.initialized() {
            inits.len()
        } else {
            inits.iter().rposition(|c| self.in_current_sandbox(&c.name).is_some()).unwrap_or(0)
        };
        for (index, c) in inits.iter().enumerate() {
            let (kind, done) = (init_kind(c), index < reached);
            if done && kind == ContainerKind::Init {
                self.end_late_init(&c.name, plan);
            } else if let Progress::Pending = self.one(c, kind, plan)
                && !done
            {
                return Progress::Pending;
            }
        }
        Progress::Settled
    }

    /// The pod is past its init containers: one that shows up now is left over from an agent that died.
    fn end_late_init(&self, name: &str, plan: &mut Plan) {
        let Some(found) = self.in_current_sandbox(name) else { return };
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
    pub fn superseded(&self, plan: &mut Plan) {
        for c in &self.observed.containers {
            let named = self.in_current_sandbox(&c.name).map(|h| &h.id) == Some(&c.id);
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
        self.spec.containers.iter().any(|c| self.in_current_sandbox(&c.name).is_some())
    }

    /// The newest instance of a container in the present sandbox.
    fn in_current_sandbox(&self, name: &str) -> Option<&'a ObservedContainer> {
        let sandbox = self.sandbox?;
        let newest = self.observed.containers.iter().filter(|c| c.name == name && c.sandbox_id == *sandbox);
        newest.max_by_key(|c| (c.attempt, c.created_at))
    }

    fn one(&self, c: &Container, kind: ContainerKind, plan: &mut Plan) -> Progress {
        let Some(found) = self.in_current_sandbox(&c.name) else {
            // In a new sandbox: init containers run again, and so do others unless they have finished for good.
            let before = self.observed.latest(&c.name);
            let over = kind == ContainerKind::Main
                && before.is_some_and(|o| {
                    o.state == ContainerState::Exited && !self.state.restarts(self.spec, c, kind, o)
                });
            if over {
                return Progress::Settled;
            }
            self.start_after(&c.name, kind, before, plan);
            return Progress::Pending;
        };
        match found.state {
            ContainerState::Running => self.running(c, kind, found, plan),
            ContainerState::Exited if self.state.restarts(self.spec, c, kind, found) => {
                self.start_after(&c.name, kind, Some(found), plan);
                Progress::Pending
            }
            // Finished for good. For an init container that is a failed pod, which `advance` has seen before.
            ContainerState::Exited if kind == ContainerKind::Init && found.has_failed() => Progress::Pending,
            ContainerState::Exited => Progress::Settled,
            // The agent died between create and start. It never ran, so it is no restart.
            ContainerState::Created => {
                plan.actions.push(Action::RemoveContainer { id: found.id.clone() });
                self.start_as(&c.name, kind, found.attempt, None, plan);
                Progress::Pending
            }
            ContainerState::Unknown => {
                let message = format!("Container {} is in an unknown state, so it is stopped", c.name);
                // Nobody knows how it ended, or whether it has.
                let again = kind != ContainerKind::Init || restarts_when_ended(self.spec, c);
                self.end(found, message, again, plan);
                Progress::Pending
            }
        }
    }

    fn running(
        &self,
        c: &Container,
        kind: ContainerKind,
        found: &ObservedContainer,
        plan: &mut Plan,
    ) -> Progress {
        let verdicts = self.facts.probes.get(&found.id);
        // An init container that runs to its end is let do so; the next time it runs from the new image.
        let changed =
            kind != ContainerKind::Init && found.hash.as_deref().is_some_and(|h| h != container_hash(c));
        if changed {
            // Whatever the policy says: what was asked for has not run yet.
            self.end(found, ending(c, kind, "definition changed", true), true, plan);
            return Progress::Pending;
        }
        if let Some(failed) = verdicts.and_then(|v| v.unhealthy) {
            let again = restarts_when_ended(self.spec, c);
            let why = format!("failed {} probe", failed.word());
            let mut k = self.ended(found, ending(c, kind, &why, again), again);
            if let Some(grace) = failed.of(c).and_then(|p| p.termination_grace_period_seconds) {
                k.grace_seconds = grace.max(1);
            }
            plan.actions.push(Action::KillContainers(vec![k]));
            return Progress::Pending;
        }
        // An init container that runs to its end is not started again for it.
        if kind != ContainerKind::Init
            && verdict(&self.desired.pod, c, self.state.actuated.as_deref()) == Verdict::Restart
        {
            self.end(found, format!("Container {} resize requires restart", c.name), true, plan);
            return Progress::Pending;
        }
        match kind {
            // A sidecar lets the next one go on once it has started; an init container only once it is done.
            ContainerKind::Sidecar if verdicts.map_or(c.startup_probe.is_none(), |v| v.started) => {
                Progress::Settled
            }
            ContainerKind::Main | ContainerKind::Ephemeral => Progress::Settled,
            ContainerKind::Init | ContainerKind::Sidecar => Progress::Pending,
        }
    }

    /// Gives what runs what was granted, before anything is started with it. What has to end first is ended first.
    pub fn resize(&self, plan: &mut Plan) {
        let mut starting = vec![];
        for action in &plan.actions {
            match action {
                Action::KillContainers(_) => return,
                Action::StartContainer { name, .. } => starting.push(name.as_str()),
                _ => {}
            }
        }
        let named = self
            .observed
            .running()
            .filter(|c| self.in_current_sandbox(&c.name).is_some_and(|newest| newest.id == c.id));
        let running: Vec<_> = named.map(|c| (c.name.as_str(), &c.id)).collect();
        let due = resize(
            &self.desired.pod,
            self.state.actuated.as_deref(),
            &running,
            &starting,
            self.state.resize.unfinished,
        );
        let Some(due) = due else { return };
        match self.state.resize.retry_at.filter(|at| *at > self.facts.now) {
            Some(at) => plan.requeue(at),
            None => plan.actions.insert(0, Action::Resize(due)),
        }
    }

    fn end(&self, found: &ObservedContainer, message: String, again: bool, plan: &mut Plan) {
        plan.actions.push(Action::KillContainers(vec![self.ended(found, message, again)]));
    }

    /// `again`: another instance follows, whatever this one exits with.
    fn ended(&self, found: &ObservedContainer, message: String, again: bool) -> Kill {
        let mine = |c: &&ObservedContainer| c.name == found.name && c.sandbox_id == found.sandbox_id;
        let dead = self.observed.containers.iter().filter(mine).filter(|c| c.state == ContainerState::Exited);
        let before = dead.max_by_key(|c| (c.attempt, c.created_at));
        let counted_from = before.map(|b| b.finished_at.unwrap_or(b.created_at));
        Kill { restart: again.then_some(Restart { counted_from }), ..kill(found, self.spec, message) }
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
        let ordered = before.and_then(|b| self.state.restart_ordered(&b.id));
        let since = before.filter(blame).and_then(|b| match ordered {
            Some(restart) => restart.counted_from,
            None => Some(b.finished_at.unwrap_or(b.created_at)),
        });
        let held = since.and_then(|since| self.crash_wait(name, since));
        if let Some(waiting) = held {
            if let Some(at) = waiting.retry_at {
                plan.requeue(at);
            }
            plan.waiting.insert(name.to_owned(), waiting);
            return;
        }
        let counted = before.filter(|_| ordered.is_none_or(|restart| restart.counted_from.is_some()));
        self.start(name, kind, before, counted, plan);
    }

    fn crash_wait(&self, name: &str, since: Timestamp) -> Option<Waiting> {
        let backoff = self.state.containers.get(name)?.crash_backoff;
        let retry_at = backoff.retry_at(since, self.facts.now);
        if backoff.delay().is_zero() || retry_at <= self.facts.now {
            return None;
        }
        let pod = format!("{}_{}({})", self.desired.name(), self.desired.namespace(), self.desired.uid);
        let message =
            format!("back-off {} restarting failed container={name} pod={pod}", short(backoff.delay()));
        Some(Waiting { reason: "CrashLoopBackOff".into(), message, retry_at: Some(retry_at) })
    }

    fn start(
        &self,
        name: &str,
        kind: ContainerKind,
        before: Option<&ObservedContainer>,
        counted: Option<&ObservedContainer>,
        plan: &mut Plan,
    ) {
        // What the runtime has forgotten is remembered by the status.
        let previous = &self.state.previous_status;
        let reported = previous.container_statuses.iter().flatten();
        let reported = reported.chain(previous.init_container_statuses.iter().flatten());
        let reported = reported
            .filter(|s| s.name == name && has_run(s))
            .map(|s| u32::try_from(s.restart_count).unwrap_or(0) + 1)
            .max();
        let attempt = before.map(|b| b.attempt + 1).max(reported).unwrap_or(0);
        self.start_as(name, kind, attempt, counted, plan);
    }

    fn start_as(
        &self,
        name: &str,
        kind: ContainerKind,
        attempt: u32,
        counted: Option<&ObservedContainer>,
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
            after: counted.map(|c| c.id.clone()),
        });
    }

    /// An image that does not pull or a secret that is missing holds back its own container only.
    fn held_back(&self, name: &str) -> Option<Timestamp> {
        self.state.waiting(name).and_then(|w| w.retry_at).filter(|at| *at > self.facts.now)
    }
}

/// An instance that was created but never started is no reason to count a restart.
fn has_run(status: &ContainerStatus) -> bool {
    let ran = |s: &ContainerState_| s.running.is_some() || s.terminated.is_some();
    status.state.as_ref().is_some_and(ran) || status.last_state.as_ref().is_some_and(ran)
}

pub(super) fn kill(c: &ObservedContainer, spec: &PodSpec, message: String) -> Kill {
    let grace_seconds = spec.termination_grace_period_seconds.unwrap_or(30).max(1);
    Kill { id: c.id.clone(), name: c.name.clone(), grace_seconds, message, restart: None, after: vec![] }
}

/// Why a container is ended, in the words that people know from a kubelet's events.
fn ending(c: &Container, kind: ContainerKind, why: &str, again: bool) -> String {
    match (kind, again) {
        (ContainerKind::Init | ContainerKind::Sidecar, _) => format!("Init container {} {why}", c.name),
        (_, true) => format!("Container {} {why}, will be restarted", c.name),
        (_, false) => format!("Container {} {why}", c.name),
    }
}

/// 10s, 2m40s, 5m0s: the way people know it from every kubectl describe.
fn short(d: std::time::Duration) -> String {
    let s = d.as_secs();
    if s < 60 { format!("{s}s") } else { format!("{}m{}s", s / 60, s % 60) }
}
