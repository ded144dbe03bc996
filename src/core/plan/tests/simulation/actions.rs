//! What each action does to the simulated runtime, when it is let succeed, and what it has to wait for when it is not.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::super::*;
use super::{Fault, Simulation};
use crate::allocation::{Resize, ResizeStep};
use crate::pod::{
    ActionOutcome, SandboxFailure, SandboxFailureCause, StartFailure, StartRetry, Step, Stopped,
};
use crate::volumes::{VolumeOutcome, VolumePlace};

impl Simulation {
    /// Whether the plan goes on.
    pub(super) fn act(&mut self, action: Action) -> bool {
        match action {
            Action::EnsureCgroup => {
                let done = self.step(Step::EnsureCgroup, Fault::Cgroup);
                if done {
                    self.w.state.cgroup_ensured(&self.w.observed);
                }
                done
            }
            Action::Resize(resize) => self.resize(resize),
            Action::MountVolumes => self.mount(),
            Action::CreateSandbox { attempt } => self.create_sandbox(attempt),
            Action::StopSandbox { id } => {
                let done = self.step(Step::StopSandbox, Fault::StopSandbox);
                if done {
                    self.stop_sandbox(&id);
                }
                done
            }
            Action::RemoveSandbox { id } => {
                let done = self.step(Step::RemoveSandbox, Fault::RemoveSandbox);
                if done {
                    self.remove_sandbox(&id);
                }
                done
            }
            Action::StartContainer { name, attempt, after, .. } => self.start(&name, attempt, after),
            Action::KillContainers(kills) => self.kill(kills),
            Action::RemoveContainer { id } => self.remove_container(&id),
            Action::ResetContainer { id } => self.reset(&id),
            Action::UnmountVolumes => self.step(Step::UnmountVolumes, Fault::Unmount),
            Action::RemoveCgroup => self.step(Step::RemoveCgroup, Fault::RemoveCgroup),
            Action::Finish => self.step(Step::Finish, Fault::Finish),
            Action::RemoveDirectories => self.step(Step::RemoveDirectories, Fault::RemoveDirectories),
        }
    }

    fn resize(&mut self, resize: Resize) -> bool {
        self.check_key("resize");
        for step in resize.steps {
            if self.fails(Fault::Resize) {
                self.held_key
                    .insert("resize".into(), (self.w.facts.now + Duration::from_secs(10), Fault::Resize));
                return self.apply(ActionOutcome::Resized(Err("no".into())));
            }
            if let ResizeStep::Container { id, .. } = &step {
                assert!(self.w.observed.running().any(|c| c.id == *id), "{id} does not run");
            }
            let _ = self.apply(ActionOutcome::ResizeStep(step));
        }
        self.forget("resize");
        self.apply(ActionOutcome::Resized(Ok(())))
    }

    fn step(&mut self, step: Step, fault: Fault) -> bool {
        if self.fails(fault) {
            let pause = self.serve("quiet", Duration::from_millis(250), Duration::from_secs(16));
            self.held = Some(self.w.facts.now + pause);
            return self.apply(ActionOutcome::Step(step, Err("no".into())));
        }
        self.apply(ActionOutcome::Step(step, Ok(())))
    }

    fn mount(&mut self) -> bool {
        let now = self.w.facts.now;
        let plan = self.w.state.plan_volumes(now);
        let mut outcomes = vec![];
        if plan.directories {
            outcomes.push(VolumeOutcome::Directories { path: "/pod".into() });
        }
        for volume in plan.prepare.into_iter().chain(plan.refresh) {
            self.check_key(&volume);
            if self.fails(Fault::Mount) {
                let pause = self.serve(&volume, Duration::from_millis(500), Duration::from_secs(120));
                self.held_key.insert(volume.clone(), (now + pause, Fault::Mount));
                outcomes.push(VolumeOutcome::Failed { volume, message: "no".into() });
                continue;
            }
            self.forget(&volume);
            self.renewals += 1;
            // A token is renewed a few times; forever would be no end.
            let refresh_at = (self.renewals < 5).then(|| now + Duration::from_secs(40));
            let place = VolumePlace::Host(format!("/pod/{volume}"));
            outcomes.push(VolumeOutcome::Prepared { volume, place, refresh_at });
        }
        self.apply(ActionOutcome::VolumesMounted(outcomes))
    }

    fn create_sandbox(&mut self, attempt: u32) -> bool {
        self.check_key("sandbox");
        let name_reserved = self.fails(Fault::SandboxReserved);
        if name_reserved || self.fails(Fault::Sandbox) {
            let pause = self.serve("sandbox", Duration::from_secs(1), Duration::from_secs(15));
            self.held_key.insert("sandbox".into(), (self.w.facts.now + pause, Fault::Sandbox));
            let cause =
                if name_reserved { SandboxFailureCause::NameReserved } else { SandboxFailureCause::Other };
            let failure = SandboxFailure { message: "no".into(), cause };
            return self.apply(ActionOutcome::SandboxCreated(Err(failure)));
        }
        self.forget("sandbox");
        let attempt = self.w.state.sandbox.attempt(attempt);
        self.w.sandbox(&format!("s{attempt}"), attempt, SandboxState::Ready);
        self.w.observed.sandboxes[0].created_at = self.w.facts.now;
        let done = self.apply(ActionOutcome::SandboxCreated(Ok(())));
        self.w.state.observed(&self.w.observed);
        done
    }

    fn start(&mut self, name: &str, attempt: u32, after: Option<ContainerId>) -> bool {
        self.check_key(name);
        let all = &self.w.observed.containers;
        if let Some(before) = all.iter().find(|c| Some(&c.id) == after.as_ref()).cloned() {
            self.restart_begins(&before);
        }
        let result = self.create(name, attempt);
        let id = result.as_ref().ok().cloned();
        let done = ActionOutcome::ContainerStarted { name: name.to_owned(), result: result.map(drop) };
        if !self.apply(done) {
            return false;
        }
        self.forget(name);
        let id = id.unwrap();
        name != "a" || self.post_start(id)
    }

    fn restart_begins(&mut self, before: &ObservedContainer) {
        let crash = format!("crash of {}", before.name);
        let served = self.served.get(&crash).copied().unwrap_or_default();
        let ended = before.finished_at.unwrap_or(before.created_at);
        let since = self.ordered.get(&before.id).copied().flatten().unwrap_or(ended);
        // What died with its sandbox, or in one that is not trusted, does not wait.
        let mut ready = self.w.observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready);
        let blamed = ready.next().is_some_and(|s| s.id == before.sandbox_id) && ready.next().is_none();
        assert!(
            !blamed || since + served <= self.w.facts.now,
            "{} restarts within its back-off",
            before.name
        );
        let was_up = before.up_time();
        if was_up >= CRASH.forgive_after {
            self.served.remove(&crash);
        }
        self.serve(&crash, CRASH.first, CRASH.most);
        let _ = self.apply(ActionOutcome::RestartBegun { name: before.name.clone(), was_up });
    }

    fn reset(&mut self, id: &ContainerId) -> bool {
        let done = self.step(Step::RemoveContainer, Fault::RemoveContainer);
        self.w.observed.containers.retain(|c| !done || c.id != *id);
        done
    }

    fn create(&mut self, name: &str, attempt: u32) -> Result<ContainerId, StartFailure> {
        let now = self.w.facts.now;
        let mut hold = |fault: Fault, pause: Duration| {
            self.held_key.insert(name.to_owned(), (now + pause, fault));
        };
        let later = Duration::from_secs(10);
        if take(&mut self.faults, Fault::Pull) {
            hold(Fault::Pull, Duration::ZERO);
            let pause = self.serve(&format!("image of {name}"), CRASH.first, CRASH.most);
            self.held_key.insert(name.to_owned(), (now + pause, Fault::Pull));
            let (reason, message) = ("ErrImagePull", "no".into());
            return Err(StartFailure { reason, message, retry: StartRetry::Pull });
        }
        if take(&mut self.faults, Fault::Config) {
            hold(Fault::Config, later);
            return Err(StartFailure::config("no"));
        }
        if take(&mut self.faults, Fault::CreateReserved) {
            hold(Fault::CreateReserved, Duration::from_millis(500));
            return Err(StartFailure { retry: StartRetry::Soon, ..StartFailure::create("reserved") });
        }
        if take(&mut self.faults, Fault::Create) {
            hold(Fault::Create, later);
            return Err(StartFailure::create("no"));
        }
        let fails = take(&mut self.faults, Fault::Start);
        if fails {
            hold(Fault::Start, later);
        }
        self.made += 1;
        let state = if fails { ContainerState::Created } else { ContainerState::Running };
        let id = ContainerId::try_from(format!("{name}-{attempt}-{}", self.made)).unwrap();
        let c = self.w.add(name, attempt, state, 0);
        (c.id, c.created_at, c.started_at) = (id.clone(), now, (!fails).then_some(now));
        if fails {
            return Err(StartFailure { reason: "RunContainerError", ..StartFailure::create("no") });
        }
        Ok(id)
    }

    fn post_start(&mut self, id: ContainerId) -> bool {
        let _ = self.apply(ActionOutcome::PostStartBegun { id: id.clone() });
        let fails = self.fails(Fault::PostStart);
        let result = Some(if fails { Err("no".to_owned()) } else { Ok(()) });
        let name = "a".to_owned();
        let done = self.apply(ActionOutcome::PostStartEnded { id: id.clone(), name: name.clone(), result });
        if fails {
            self.kill(vec![Kill {
                id,
                name,
                grace_seconds: 30,
                message: String::new(),
                restart: None,
                after: vec![],
            }]);
        }
        done
    }

    fn kill(&mut self, kills: Vec<Kill>) -> bool {
        self.check_hooks(&kills);
        for kill in &kills {
            self.w.state.begin_stop(kill);
        }
        let (mut all, mut failed) = (vec![], vec![]);
        let mut waiting = kills;
        while !waiting.is_empty() {
            let waits = |k: &Kill| k.after.iter().any(|id| waiting.iter().any(|other| other.id == *id));
            let next = waiting.iter().position(|k| !waits(k)).expect("two wait for each other");
            let kill = waiting.remove(next);
            let Kill { id, name, after, restart, .. } = kill;
            if restart.is_some() {
                let before = self.ended_before(&id);
                self.ordered.entry(id.clone()).or_insert(before);
            }
            if after.iter().any(|other| failed.contains(other)) {
                failed.push(id);
                all.push(Stopped { name, pre_stop: Ok(()), stop: Ok(()) });
                continue;
            }
            let stop = if self.fails(Fault::Kill) { Err("no".to_owned()) } else { Ok(()) };
            if stop.is_err() {
                failed.push(id);
            } else {
                self.check_turn(&name);
                // One of them makes the best of its end.
                let code = if name == "b" { 0 } else { 137 };
                self.end(|c| c.id == id, code);
            }
            all.push(Stopped { name, pre_stop: Ok(()), stop });
        }
        if !failed.is_empty() {
            let pause = self.serve("quiet", Duration::from_millis(250), Duration::from_secs(16));
            self.held = Some(self.w.facts.now + pause);
        }
        self.apply(ActionOutcome::ContainersStopped(all))
    }

    /// The preStop hooks of a pod that ends run at once: none is left for later.
    fn check_hooks(&self, kills: &[Kill]) {
        let ends = matches!(self.w.state.lifecycle, Lifecycle::Terminating { .. });
        let alive =
            |c: &&ObservedContainer| matches!(c.state, ContainerState::Running | ContainerState::Unknown);
        for c in self.w.observed.containers.iter().filter(alive).filter(|_| ends) {
            assert!(kills.iter().any(|k| k.id == c.id), "{} does not begin to end with the others", c.id);
        }
    }

    /// A sidecar of a pod that ends gets its signal after the main containers have ended, while there is time for it.
    fn check_turn(&self, name: &str) {
        let Lifecycle::Terminating { deadline, .. } = &self.w.state.lifecycle else { return };
        if name == "i1"
            && self.w.desired.container(name).is_some_and(|c| c.restart_policy.is_some())
            && self.w.facts.now < *deadline
        {
            let main = self.w.observed.running().find(|c| ["a", "b"].contains(&c.name.as_str()));
            assert!(main.is_none(), "{name} is stopped before {main:?}");
        }
    }

    /// When the last instance before this one ended, in the same sandbox. What the same plan has ended beside it, because it
    /// was replaced, has no part in that.
    fn ended_before(&self, id: &ContainerId) -> Option<Timestamp> {
        let all = &self.planned_from.containers;
        let this = all.iter().find(|c| c.id == *id)?;
        let same = |c: &&ObservedContainer| c.name == this.name && c.sandbox_id == this.sandbox_id;
        let dead = all.iter().filter(same).filter(|c| c.state == ContainerState::Exited);
        dead.max_by_key(|c| (c.attempt, c.created_at))?.finished_at
    }

    fn remove_container(&mut self, id: &ContainerId) -> bool {
        let stuck = self.w.observed.containers.iter().find(|c| c.id == *id).cloned();
        if self.faults.get(&Fault::RemoveContainer).and_then(|f| f.front()) == Some(&true)
            && let Some(stuck) = stuck
            && self.w.state.only_its_sandbox_can_end(&stuck, &self.w.observed, self.w.facts.now)
        {
            let sandbox = stuck.sandbox_id;
            let gone = self.step(Step::StopSandbox, Fault::StopSandbox)
                && self.step(Step::RemoveSandbox, Fault::RemoveSandbox);
            if gone {
                self.remove_sandbox(&sandbox);
            }
            return false;
        }
        let done = self.step(Step::RemoveContainer, Fault::RemoveContainer);
        if done {
            self.w.observed.containers.retain(|c| c.id != *id);
        }
        done
    }

    fn apply(&mut self, done: ActionOutcome) -> bool {
        !self.w.state.apply(done, self.w.facts.now).stop
    }

    fn fails(&mut self, fault: Fault) -> bool {
        take(&mut self.faults, fault)
    }

    /// Doubles what a key has to serve, and returns it.
    fn serve(&mut self, key: &str, first: Duration, most: Duration) -> Duration {
        let served = self.served.entry(key.to_owned()).or_default();
        *served = if served.is_zero() { first } else { (*served * 2).min(most) };
        *served
    }

    fn check_key(&self, key: &str) {
        let now = self.w.facts.now;
        if let Some((at, fault)) = self.held_key.get(key) {
            assert!(*at <= now, "{key} is tried again at {now}, {fault:?} allows it at {at}");
        }
    }

    pub(super) fn forget(&mut self, key: &str) {
        self.held_key.remove(key);
        self.served.remove(key);
        self.served.remove(&format!("image of {key}"));
    }
}

fn take(faults: &mut BTreeMap<Fault, VecDeque<bool>>, fault: Fault) -> bool {
    faults.get_mut(&fault).and_then(VecDeque::pop_front).unwrap_or(false)
}
