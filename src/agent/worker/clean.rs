//! Takes away what a pod has left, and says the last word about it.

use std::future::Future;

use jiff::{SignedDuration, Timestamp};
use keelson_core::desired::{Lifecycle, PodSource, TerminationReason};
use keelson_core::facts::VolumesState;
use keelson_core::ids::ContainerId;
use keelson_core::observed::{ContainerState, ObservedContainer};

use super::Worker;
use super::execute::Stop;

/// A start whose caller died is being given up for so long, and the container cannot be removed in that time: containerd
/// takes 5 s for it, more on a busy machine. What cannot be removed after that is stuck.
const GIVING_UP: SignedDuration = SignedDuration::from_secs(30);

impl Worker {
    /// Runs `work` unless an order comes in that makes it pointless: the pod is deleted, or its grace cut short.
    /// `None` if it was given up.
    pub(super) async fn unless_urgent<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut orders = self.orders.clone();
        let lifecycle = self.lifecycle.clone();
        let urgent =
            async move {
                loop {
                    {
                        let order = orders.borrow_and_update();
                        let deletion =
                            match &order.desired {
                                None => Some(1),
                                Some(d) => d.pod.metadata.deletion_timestamp.as_ref().map(|_| {
                                    d.pod.metadata.deletion_grace_period_seconds.unwrap_or(30).max(1)
                                }),
                            };
                        let urgent = match (&lifecycle, deletion) {
                            (Lifecycle::Syncing, d) => d.is_some(),
                            // Only if it would really end sooner; orders repeat themselves.
                            (Lifecycle::Terminating { deadline, reason }, Some(grace)) => {
                                let sooner = Timestamp::now().checked_add(SignedDuration::from_secs(grace));
                                *reason != TerminationReason::Orphaned && sooner.is_ok_and(|s| s < *deadline)
                            }
                            _ => false,
                        };
                        if urgent {
                            return;
                        }
                    }
                    if orders.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            };
        tokio::select! {
            done = work => Some(done),
            () = urgent => None,
        }
    }

    pub(super) async fn remove_container(&mut self, id: &ContainerId) -> Result<(), Stop> {
        let gone = self.observed.containers.iter().find(|c| c.id == *id).cloned();
        let done = self.ctx.runtime.remove_container(id).await;
        if done.is_err()
            && let Some(stuck) = gone.as_ref().filter(|c| self.only_its_sandbox_can_end(c))
        {
            // A start that was given up half-way can leave a task that only ends with the sandbox around it. Nothing
            // runs there, so nothing is lost with it.
            let sandbox = stuck.sandbox_id.clone();
            tracing::warn!(container = %id, %sandbox, "an unborn container cannot be removed; its sandbox goes with it");
            let stopped = self.ctx.runtime.stop_sandbox(&sandbox).await;
            self.checked("stop sandbox", stopped)?;
            let removed = self.ctx.runtime.remove_sandbox(&sandbox).await;
            self.checked("remove sandbox", removed)?;
            return Err(Stop::Interrupted);
        }
        self.checked("remove container", done)?;
        if let Some(c) = gone {
            let (namespace, pod) = (self.observed.namespace.clone(), self.observed.name.clone());
            let logs = self.ctx.logs.clone();
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
        Ok(())
    }

    fn only_its_sandbox_can_end(&self, c: &ObservedContainer) -> bool {
        let beside = self.observed.running().any(|r| r.sandbox_id == c.sandbox_id);
        let persistent =
            self.retry.failures >= 4 && Timestamp::now().duration_since(c.created_at) > GIVING_UP;
        persistent && c.state == ContainerState::Created && !(beside && self.lifecycle.is_syncing())
    }

    pub(super) async fn unmount_volumes(&mut self) -> Result<(), Stop> {
        let dirs = self.ctx.dirs.pod(&self.uid);
        let done = blocking(move || keelson_host::volumes::teardown_all(&dirs)).await;
        self.checked("unmount volumes", done)?;
        self.volumes = VolumesState::Pending;
        self.mounted = Default::default();
        Ok(())
    }

    pub(super) async fn remove_cgroup(&mut self) -> Result<(), Stop> {
        let (cgroups, uid) = (self.ctx.cgroups.clone(), self.uid.clone());
        let done = blocking(move || cgroups.remove_pod(&uid)).await;
        self.checked("remove cgroup", done)
    }

    pub(super) async fn finish(&mut self, reason: &TerminationReason) -> Result<(), Stop> {
        let Some(desired) = self.last_desired.clone() else { return Ok(()) };
        if *reason != TerminationReason::Deleted || desired.source == PodSource::Static {
            return Ok(());
        }
        let Some(api) = &self.ctx.api else { return Ok(()) };
        // The object goes last, and only after it has told how the pod ended.
        self.ctx.statuses.settled(&self.uid).await;
        let done = api.api.delete_pod(desired.namespace(), desired.name(), self.uid.as_str()).await;
        match done {
            Err(e) if e.is_not_found() || e.is_conflict() => Ok(()),
            other => self.checked("delete the pod's API object", other.map(|_| ())),
        }
    }

    pub(super) async fn remove_directories(&mut self) -> Result<(), Stop> {
        let dirs = self.ctx.dirs.pod(&self.uid);
        let logs = self.ctx.logs.clone();
        let (namespace, name, uid) =
            (self.observed.namespace.clone(), self.observed.name.clone(), self.uid.clone());
        let containers: Vec<_> =
            self.observed.containers.iter().map(|c| (c.name.clone(), c.id.clone())).collect();
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
        self.checked("remove the pod's directories", done)
    }
}

/// Off the async threads, with a panic turned into an error like any other.
pub(super) async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, String>
where
    T: Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) => Err(e.to_string()),
        Err(e) => Err(e.to_string()),
    }
}
