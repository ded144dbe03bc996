//! Carries a plan out: in order, up to the first failure.

mod cgroup;
mod clean;
mod container;
mod hooks;
mod kill;
mod ownership;
mod prepare;
mod pull;
mod resize;
mod sandbox;
mod volumes;

pub(super) use volumes::change;

use std::time::{Duration, Instant};

use jiff::Timestamp;
use keelson_core::plan::Action;
use keelson_core::pod::{ActionOutcome, SandboxFailureCause, Step, Stopped};

use super::Worker;

/// A plan was not carried out to its end: something failed, or a more urgent order came in. What the next plan has to
/// know of it is in the pod's state.
struct Stop;

/// A plan that takes longer than this is made anew between two steps, and a step that does is reported beside, so that status
/// keeps up.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

impl Worker {
    pub(super) async fn execute(&mut self, actions: Vec<Action>) {
        let began = Instant::now();
        for action in actions {
            tracing::debug!(?action, "act");
            let slow = matches!(action, Action::CreateSandbox { .. } | Action::StartContainer { .. });
            let of_runtime = !matches!(action, Action::EnsureCgroup | Action::MountVolumes);
            let done = self.act(action).await;
            // Whatever came of it, the pod is not as it was observed. What a volume shows is not the runtime's.
            self.stale |= of_runtime;
            if done.is_err() {
                return;
            }
            if slow && began.elapsed() > PATIENCE {
                break;
            }
        }
        self.state.round_succeeded();
    }

    async fn act(&mut self, action: Action) -> Result<(), Stop> {
        match action {
            Action::EnsureCgroup => self.ensure_cgroup().await,
            Action::MountVolumes => self.mount_volumes().await,
            Action::CreateSandbox { attempt } => self.create_sandbox(attempt).await,
            Action::StopSandbox { id } => self.stop_sandbox(&id).await,
            Action::RemoveSandbox { id } => self.remove_sandbox(&id).await,
            Action::RemoveContainer { id } => self.remove_container(&id).await,
            Action::ResetContainer { id } => self.reset_container(&id).await,
            Action::StartContainer { name, kind, attempt, after } => {
                self.start_container(&name, kind, attempt, after).await
            }
            Action::Resize(resize) => self.resize(resize).await,
            Action::KillContainers(kills) => self.kill_containers(kills).await,
            Action::UnmountVolumes => self.unmount_volumes().await,
            Action::RemoveCgroup => self.remove_cgroup().await,
            Action::Finish => self.finish().await,
            Action::RemoveDirectories => self.remove_directories().await,
        }
    }

    /// Has the core decide what an outcome means, and reports it.
    fn settle(&mut self, done: ActionOutcome) -> Result<(), Stop> {
        log_failure(&done);
        self.recorder.record(|timeline, now| timeline.outcome(&done, now));
        if let ActionOutcome::ContainerStarted { result: Err(failure), .. } = &done {
            self.node.reports.metrics.container_not_started("container", failure.reason);
        }
        if let ActionOutcome::SandboxCreated(Err(failure)) = &done
            && failure.cause != SandboxFailureCause::NetworkNotReady
        {
            self.node.reports.metrics.sandbox_not_made();
        }
        let applied = self.state.apply(done, Timestamp::now());
        self.report_events(&applied.events);
        if applied.stop { Err(Stop) } else { Ok(()) }
    }

    fn settle_step(&mut self, step: Step, done: Result<(), impl std::fmt::Display>) -> Result<(), Stop> {
        self.settle(ActionOutcome::Step(step, done.map_err(|e| e.to_string())))
    }
}

fn log_failure(done: &ActionOutcome) {
    match done {
        ActionOutcome::Step(step, Err(error)) => {
            tracing::warn!(error, "{} failed, will try again", step.words());
        }
        ActionOutcome::VolumesMounted(outcomes) => {
            for error in outcomes.iter().filter_map(|o| o.failure()) {
                tracing::warn!(error, "a volume is not ready");
            }
        }
        ActionOutcome::SandboxCreated(Err(failure)) => {
            tracing::warn!(error = failure.message, "sandbox not created");
        }
        ActionOutcome::ContainerStarted { name, result: Err(failure) } => {
            tracing::warn!(
                container = name,
                reason = failure.reason,
                error = failure.message,
                "container not started"
            );
        }
        ActionOutcome::PostStartEnded { name, result: Some(Err(error)), .. } => {
            tracing::debug!(container = name, error, "postStart hook failed");
        }
        ActionOutcome::Resized(Err(error)) => {
            tracing::warn!(error, "resize failed, will try again");
        }
        ActionOutcome::ContainersStopped(all) => {
            for Stopped { name, pre_stop, .. } in all {
                if let Err(error) = pre_stop {
                    tracing::debug!(container = name, error, "preStop hook failed");
                }
            }
            for failed in all.iter().filter(|s| s.stop.is_err()) {
                tracing::warn!(container = failed.name, error = ?failed.stop, "stop container failed, will try again");
            }
        }
        _ => {}
    }
}
