//! Takes away what a pod has left, and reports its end.

use jiff::Timestamp;
use keelson_core::desired::{Lifecycle, PodSource, TerminationReason};
use keelson_core::ids::ContainerId;
use keelson_core::observed::ObservedContainer;
use keelson_core::pod::Step;
use keelson_core::timeline::{Place, Step as Timed};

use super::Stop;
use crate::registry::timelines::Timing;
use crate::worker::Worker;
use crate::worker::blocking::blocking;

impl Worker {
    pub(super) async fn remove_container(&mut self, id: &ContainerId) -> Result<(), Stop> {
        let gone = self.observed.containers.iter().find(|c| c.id == *id).cloned();
        let timing = self.removal(Place::Runtime);
        let done = self.node.runtime.remove_container(id).await;
        timing.map(|timing| timing.ended(&done));
        if done.is_err()
            && let Some(stuck) = &gone
            && self.state.only_its_sandbox_can_end(stuck, &self.observed, Timestamp::now())
        {
            // Nothing runs there, so nothing is lost with it.
            let sandbox = stuck.sandbox_id.clone();
            tracing::warn!(container = %id, %sandbox, "an unborn container cannot be removed; its sandbox goes with it");
            self.stop_sandbox(&sandbox).await?;
            self.kill_forgotten_processes().await;
            self.remove_sandbox(&sandbox).await?;
            return Err(Stop);
        }
        self.settle_step(Step::RemoveContainer, done)?;
        if let Some(gone) = gone {
            self.remove_log(gone).await;
        }
        Ok(())
    }

    /// So that its pod starts over. Its log stays until the next one does the same.
    pub(super) async fn reset_container(&mut self, id: &ContainerId) -> Result<(), Stop> {
        let gone = self.observed.containers.iter().find(|c| c.id == *id).cloned();
        let done = self.node.runtime.remove_container(id).await;
        self.settle_step(Step::RemoveContainer, done)?;
        let Some(gone) = gone else { return Ok(()) };
        self.remove_older_logs(gone).await;
        Ok(())
    }

    async fn remove_older_logs(&self, c: ObservedContainer) {
        let logs = self.node.logs.clone();
        let (namespace, pod, uid) =
            (self.observed.namespace.clone(), self.observed.name.clone(), self.uid.clone());
        let removed = blocking(move || logs.remove_older(&namespace, &pod, &uid, &c.name, c.attempt));
        if let Err(error) = removed.await {
            tracing::warn!(error, "older logs of a container stay");
        }
    }

    /// A start that the runtime gave up can leave a process that it takes for ended and therefore does not stop; nothing of the
    /// pod can be removed while that lives.
    async fn kill_forgotten_processes(&self) {
        if self.observed.running().next().is_some() {
            return;
        }
        let (cgroups, uid) = (self.node.cgroups.clone(), self.uid.clone());
        let killed = tokio::task::spawn_blocking(move || cgroups.kill_pod(&uid)).await;
        if let Err(error) = killed {
            tracing::warn!(%error, "the pod's processes could not be killed");
        }
    }

    async fn remove_log(&self, c: ObservedContainer) {
        let (namespace, pod) = (self.observed.namespace.clone(), self.observed.name.clone());
        let logs = self.node.logs.clone();
        let removed = tokio::task::spawn_blocking(move || {
            logs.unlink(&namespace, &pod, &c.name, &c.id)?;
            // The runtime has named this path, and the observation has checked that it lies in the pod's directory.
            if c.log_path.is_empty() {
                return Ok(());
            }
            keelson_host::logs::remove_log(c.log_path.as_ref())
        });
        if let Ok(Err(e)) = removed.await {
            tracing::warn!(error = %e, "log of a removed container stays");
        }
    }

    /// What is removed of a pod that goes on is no part of its end.
    pub(super) fn removal(&self, place: Place) -> Option<Timing> {
        let ends = !self.state.lifecycle.is_syncing();
        ends.then(|| self.recorder.begin(Timed::Removed, None, place))
    }

    /// The final status reaches the apiserver, and the object of a deleted pod goes.
    pub(super) async fn finish(&mut self) -> Result<(), Stop> {
        let deleted =
            matches!(self.state.lifecycle, Lifecycle::Terminated { reason: TerminationReason::Deleted });
        let desired = self.state.desired.as_ref().filter(|d| deleted && d.source == PodSource::Api);
        let (Some(desired), Some(api)) = (desired, &self.node.api) else {
            return self.settle_step(Step::Finish, Ok::<(), String>(()));
        };
        let timing = self.recorder.begin(Timed::ObjectRemoved, None, Place::Apiserver);
        // The object goes last, and only after it shows how the pod ended.
        self.node.reports.statuses.settled(&self.uid).await;
        let done = match api.api.delete_pod(desired.namespace(), desired.name(), self.uid.as_str()).await {
            Err(e) if e.is_not_found() || e.is_conflict() => Ok(()),
            other => other.map(drop),
        };
        timing.ended(&done);
        self.settle_step(Step::Finish, done)
    }

    pub(super) async fn remove_directories(&mut self) -> Result<(), Stop> {
        let dirs = self.node.dirs.pod(&self.uid);
        let logs = self.node.logs.clone();
        let (namespace, name, uid) =
            (self.observed.namespace.clone(), self.observed.name.clone(), self.uid.clone());
        let containers: Vec<_> =
            self.observed.containers.iter().map(|c| (c.name.clone(), c.id.clone())).collect();
        let timing = self.removal(Place::Node);
        let done = blocking(move || {
            dirs.remove().map_err(|e| e.to_string())?;
            if !name.is_empty() {
                for (container, id) in containers {
                    logs.unlink(&namespace, &name, &container, &id).map_err(|e| e.to_string())?;
                }
                logs.remove_pod(&namespace, &name, &uid).map_err(|e| e.to_string())?;
            }
            Ok::<(), String>(())
        })
        .await;
        timing.map(|timing| timing.ended(&done));
        self.settle_step(Step::RemoveDirectories, done)
    }
}
