//! What the outcome of an action means for the pod: the next state of its memory, the events that say so, and whether
//! the rest of the plan is still worth carrying out.

use std::time::Duration;

use jiff::Timestamp;

use super::state::{CleanUp, PodState, Waiting};
use crate::allocation::ResizeStep;
use crate::backoff::{Backoff, IMAGE, SANDBOX};
use crate::desired::Lifecycle;
use crate::ids::ContainerId;
use crate::image::is_image_reason;
use crate::plan::PlannedEvent;
use crate::volumes::{PodVolumes, VolumeOutcome, VolumesState};

/// What became of an action, or of one stage of it. Failures are in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ActionOutcome {
    Step(Step, Result<(), String>),
    /// One for each step of the plan for volumes.
    VolumesMounted(Vec<VolumeOutcome>),
    SandboxCreated(Result<(), SandboxFailure>),
    /// A container is about to be started in place of one that was up for so long.
    RestartBegun {
        name: String,
        was_up: Duration,
    },
    ContainerStarted {
        name: String,
        result: Result<(), StartFailure>,
    },
    PostStartBegun {
        id: ContainerId,
    },
    /// `None`: it was given up for a more urgent order.
    PostStartEnded {
        id: ContainerId,
        name: String,
        result: Option<Result<(), String>>,
    },
    ContainersStopped(Vec<Stopped>),
    /// One step of a resize was taken.
    ResizeStep(ResizeStep),
    /// All of it was, or one was not.
    Resized(Result<(), String>),
}

/// Steps whose failure has no place in the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    EnsureCgroup,
    StopSandbox,
    RemoveSandbox,
    RemoveContainer,
    UnmountVolumes,
    RemoveCgroup,
    Finish,
    RemoveDirectories,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxFailure {
    pub message: String,
    pub cause: SandboxFailureCause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxFailureCause {
    /// The runtime says that a sandbox of this name is being made already.
    NameReserved,
    /// The runtime says that its network is not ready, so it was not asked for one.
    NetworkNotReady,
    Other,
}

/// A container that could not be started, as its status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    pub reason: &'static str,
    pub message: String,
    pub retry: StartRetry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartRetry {
    /// Pulls serve a back-off of their own.
    Pull,
    /// Everything else is tried again after ten seconds, or when something changes.
    Later,
    /// A call of an earlier agent still holds the name; it will not for long.
    Soon,
}

/// One container of those that were stopped together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    pub name: String,
    pub pre_stop: Result<(), String>,
    /// Nothing failed either where its turn did not come because another one could not be stopped.
    pub stop: Result<(), String>,
}

/// What follows from an outcome beside the new state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct Applied {
    pub events: Vec<PlannedEvent>,
    /// The rest of the plan counted on what failed.
    pub stop: bool,
}

const RETRY_LATER: Duration = Duration::from_secs(10);
const RETRY_SOON: Duration = Duration::from_millis(500);

impl PodState {
    pub fn apply(&mut self, done: ActionOutcome, now: Timestamp) -> Applied {
        match done {
            ActionOutcome::Step(step, Ok(())) => self.step_done(step),
            ActionOutcome::Step(step, Err(message)) => {
                self.retry.failed(now);
                let events = match step {
                    Step::EnsureCgroup => {
                        let message = format!("unable to ensure pod container exists: {message}");
                        vec![PlannedEvent::warning("FailedToCreatePodContainer", message)]
                    }
                    _ => vec![],
                };
                Applied { events, stop: true }
            }
            ActionOutcome::VolumesMounted(outcomes) => self.volumes_mounted(outcomes, now),
            ActionOutcome::SandboxCreated(result) => self.sandbox_created(result, now),
            ActionOutcome::RestartBegun { name, was_up } => {
                let memory = self.containers.entry(name).or_default();
                memory.crash_backoff = memory.crash_backoff.next(self.crash_policy.0, was_up);
                Applied::default()
            }
            ActionOutcome::ContainerStarted { name, result } => self.container_started(name, result, now),
            ActionOutcome::PostStartBegun { id } => {
                self.instances.entry(id).or_default().hook_running = true;
                Applied::default()
            }
            ActionOutcome::PostStartEnded { id, name, result } => {
                if let Some(memory) = self.instances.get_mut(&id) {
                    memory.hook_running = false;
                }
                // Without what the hook has said: everybody who may see the pod may read its events.
                let event = || PlannedEvent::warning("FailedPostStartHook", "PostStartHook failed").of(&name);
                let failed = matches!(result, Some(Err(_)));
                Applied { events: failed.then(event).into_iter().collect(), stop: result != Some(Ok(())) }
            }
            ActionOutcome::ContainersStopped(all) => self.containers_stopped(all, now),
            ActionOutcome::ResizeStep(step) => self.step_taken(&step),
            ActionOutcome::Resized(Ok(())) => self.resized(),
            ActionOutcome::Resized(Err(message)) => {
                self.resize_failed(message, now.checked_add(RETRY_LATER).unwrap_or(now))
            }
        }
    }

    fn step_done(&mut self, step: Step) -> Applied {
        match step {
            Step::UnmountVolumes => self.volumes = PodVolumes::default(),
            Step::RemoveCgroup => self.clean_up = CleanUp::Released,
            Step::Finish => {
                if let Lifecycle::Terminated { reason } = &self.lifecycle {
                    self.clean_up = CleanUp::Finished(reason.clone());
                }
            }
            Step::RemoveDirectories => self.clean_up = CleanUp::Gone,
            Step::EnsureCgroup | Step::StopSandbox | Step::RemoveSandbox | Step::RemoveContainer => {}
        }
        Applied::default()
    }

    fn volumes_mounted(&mut self, outcomes: Vec<VolumeOutcome>, now: Timestamp) -> Applied {
        let failed = |o: &VolumeOutcome| Some(PlannedEvent::warning("FailedMount", o.failure()?));
        let events = outcomes.iter().filter_map(failed).collect();
        for outcome in outcomes {
            self.volumes.apply(outcome, now);
        }
        self.refresh_volumes(now);
        // A volume that was good until now stays in use, so whatever runs or restarts goes on with what is there.
        let stop = matches!(self.volumes.state, VolumesState::Failed(_));
        if let Some(again) = self.volumes.next_review().filter(|_| stop) {
            self.retry.hold_until(again);
        }
        Applied { events, stop }
    }

    fn sandbox_created(&mut self, result: Result<(), SandboxFailure>, now: Timestamp) -> Applied {
        let sandbox = &mut self.sandbox;
        let Err(failure) = result else {
            *sandbox = Default::default();
            return Applied::default();
        };
        let name_reserved = failure.cause == SandboxFailureCause::NameReserved;
        sandbox.name_reserved = if name_reserved { sandbox.name_reserved + 1 } else { 0 };
        sandbox.backoff.fail(SANDBOX);
        let (reason, what) = match failure.cause {
            SandboxFailureCause::NetworkNotReady => ("NetworkNotReady", "network is not ready"),
            _ => ("FailedCreatePodSandBox", "Failed to create pod sandbox"),
        };
        let message = format!("{what}: {}", failure.message);
        let events = vec![PlannedEvent::warning(reason, message.clone())];
        let retry_at = Some(sandbox.backoff.retry_at(now, now));
        sandbox.failure = Some(Waiting { reason: reason.into(), message, retry_at });
        Applied { events, stop: true }
    }

    fn container_started(
        &mut self,
        name: String,
        result: Result<(), StartFailure>,
        now: Timestamp,
    ) -> Applied {
        let memory = self.containers.entry(name.clone()).or_default();
        let Err(failure) = result else {
            memory.waiting = None;
            memory.image_backoff = Backoff::default();
            self.made(&name);
            let events = vec![PlannedEvent::normal("Started", "Container started").of(&name)];
            return Applied { events, stop: false };
        };
        let after = |pause: Duration| now.checked_add(pause).unwrap_or(now);
        let retry_at = match failure.retry {
            StartRetry::Pull => {
                memory.image_backoff.fail(IMAGE);
                memory.image_backoff.retry_at(now, now)
            }
            StartRetry::Later => after(RETRY_LATER),
            StartRetry::Soon => after(RETRY_SOON),
        };
        // What is wrong with an image has had an event of its own.
        let error = if is_image_reason(failure.reason) { failure.reason } else { &failure.message };
        let events = vec![PlannedEvent::warning("Failed", format!("Error: {error}")).of(&name)];
        memory.waiting = Some(Waiting {
            reason: failure.reason.into(),
            message: failure.message,
            retry_at: Some(retry_at),
        });
        Applied { events, stop: true }
    }

    fn containers_stopped(&mut self, all: Vec<Stopped>, now: Timestamp) -> Applied {
        let mut applied = Applied::default();
        for Stopped { name, pre_stop, stop } in all {
            if pre_stop.is_err() {
                applied
                    .events
                    .push(PlannedEvent::warning("FailedPreStopHook", "PreStopHook failed").of(&name));
            }
            if let Err(e) = stop {
                let message = format!("error killing container: {e}");
                applied.events.push(PlannedEvent::warning("FailedKillPod", message).of(&name));
                applied.stop = true;
            }
        }
        if applied.stop {
            self.retry.failed(now);
        }
        applied
    }
}

impl Step {
    /// For the log.
    pub fn words(self) -> &'static str {
        match self {
            Self::EnsureCgroup => "make the pod's cgroup",
            Self::StopSandbox => "stop sandbox",
            Self::RemoveSandbox => "remove sandbox",
            Self::RemoveContainer => "remove container",
            Self::UnmountVolumes => "unmount volumes",
            Self::RemoveCgroup => "remove cgroup",
            Self::Finish => "delete the pod's API object",
            Self::RemoveDirectories => "remove the pod's directories",
        }
    }
}

impl StartFailure {
    pub fn config(message: impl ToString) -> Self {
        let reason = "CreateContainerConfigError";
        Self { reason, message: message.to_string(), retry: StartRetry::Later }
    }

    pub fn create(message: impl ToString) -> Self {
        Self { reason: "CreateContainerError", message: message.to_string(), retry: StartRetry::Later }
    }
}
