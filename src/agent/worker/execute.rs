//! Carries a plan out: in order, up to the first failure.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use keelson_core::desired::Lifecycle;
use keelson_core::facts::CleanUp;
use keelson_core::plan::Action;

use super::Worker;

/// Why a plan was not carried out to its end. What failed has been recorded where the next plan will see it.
pub(super) enum Stop {
    Failed,
    /// A more urgent order came in.
    Interrupted,
}

/// A plan that takes longer than this is looked at again between two steps, so that status keeps up.
const PATIENCE: Duration = Duration::from_millis(500);

impl Worker {
    pub(super) async fn execute(&mut self, actions: Vec<Action>) {
        self.stale = true;
        let began = Instant::now();
        for action in actions {
            tracing::debug!(?action, "act");
            let slow = matches!(action, Action::CreateSandbox { .. } | Action::StartContainer { .. });
            if self.act(action).await.is_err() {
                self.stale = true;
                return;
            }
            if slow && began.elapsed() > PATIENCE {
                break;
            }
        }
        self.retry.succeeded();
        self.stale = true;
    }

    async fn act(&mut self, action: Action) -> Result<(), Stop> {
        match action {
            Action::EnsureCgroup => self.ensure_cgroup().await,
            Action::MountVolumes => self.mount_volumes().await,
            Action::CreateSandbox { attempt } => self.create_sandbox(attempt).await,
            Action::StopSandbox { id } => {
                let done = self.ctx.runtime.stop_sandbox(&id).await;
                self.checked("stop sandbox", done)
            }
            Action::RemoveSandbox { id } => {
                let done = self.ctx.runtime.remove_sandbox(&id).await;
                self.checked("remove sandbox", done)
            }
            Action::RemoveContainer { id } => self.remove_container(&id).await,
            Action::StartContainer { name, kind, attempt, after } => {
                self.start_container(&name, kind, attempt, after).await
            }
            Action::KillContainers(kills) => self.kill_containers(kills).await,
            Action::UnmountVolumes => self.unmount_volumes().await,
            Action::RemoveCgroup => {
                self.remove_cgroup().await?;
                self.clean_up = CleanUp::Released;
                Ok(())
            }
            Action::Finish => {
                let Lifecycle::Terminated { reason } = self.lifecycle.clone() else {
                    return Err(Stop::Failed);
                };
                self.finish(&reason).await?;
                self.clean_up = CleanUp::Finished(reason);
                Ok(())
            }
            Action::RemoveDirectories => {
                self.remove_directories().await?;
                self.clean_up = CleanUp::Gone;
                Ok(())
            }
        }
    }

    /// For steps whose failure has no place in the status: said once in the log, tried again shortly.
    pub(super) fn checked<T, E: std::fmt::Display>(
        &mut self,
        what: &str,
        done: Result<T, E>,
    ) -> Result<T, Stop> {
        done.map_err(|e| {
            tracing::warn!(error = %e, "{what} failed, will try again");
            self.retry.failed(Timestamp::now());
            Stop::Failed
        })
    }
}
