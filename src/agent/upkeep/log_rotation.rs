//! Keeps containers' logs at their size: reads the sizes of running containers' logs, now and then, and rotates those that
//! are full. Where nothing is full a round costs one stat a container.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use keelson_core::ids::ContainerId;
use keelson_core::logs::rotation::{Growth, next_check};
use keelson_cri::Runtime;
use keelson_host::logs::{Followers, Rotation, size};
use tokio::task::JoinHandle;

use crate::node::Node;
use crate::registry::Registry;
use crate::report::metrics::Metrics;

/// A container that was just started is checked soon: it may be one that writes quickly.
const FIRST_CHECK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
struct RotationLimits {
    max_size: u64,
    max_files: usize,
    workers: usize,
    interval: Duration,
}

pub async fn run(node: Arc<Node>) {
    let config = &node.settings.kubelet;
    let Ok(max_size) = u64::try_from(config.container_log_max_size.value()) else {
        tracing::info!("containerLogMaxSize is negative: logs are not rotated");
        return std::future::pending().await;
    };
    let limits = RotationLimits {
        max_size,
        max_files: usize::try_from(config.container_log_max_files).unwrap_or(5),
        workers: usize::try_from(config.container_log_max_workers).unwrap_or(1).max(1),
        interval: config.container_log_monitor_interval.get(),
    };
    let (runtime, root) = (node.runtime.clone(), node.settings.paths.pod_logs_dir.clone());
    let followers = node.reports.log_watch.followers().clone();
    let keeper = Keeper { metrics: &node.reports.metrics, runtime, root, limits, followers };
    keeper.run(node.registry.clone()).await;
}

struct Keeper<'a> {
    metrics: &'a Metrics,
    runtime: Runtime,
    root: PathBuf,
    limits: RotationLimits,
    followers: Followers,
}

/// What is known of one log.
struct RotatedLog {
    path: PathBuf,
    /// When it was first heard of.
    since: Instant,
    due: Instant,
    /// The size at the last check, and when that was.
    last: Option<(u64, Instant)>,
    /// Older files are being compressed, which a log that fills quickly does not wait for.
    compressing: Option<JoinHandle<()>>,
}

impl Keeper<'_> {
    async fn run(self, registry: Registry) {
        let mut logs: HashMap<ContainerId, RotatedLog> = HashMap::new();
        let mut changes = registry.running_changes();
        loop {
            changes.mark_unchanged();
            follow(&registry, &mut logs);
            let now = Instant::now();
            let due = logs.values().map(|log| log.due).min().unwrap_or(now + self.limits.interval);
            if due > now {
                tokio::select! {
                    () = tokio::time::sleep_until(due.into()) => {}
                    changed = changes.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        continue;
                    }
                }
            }
            self.check_sizes(&mut logs).await;
        }
    }

    async fn check_sizes(&self, logs: &mut HashMap<ContainerId, RotatedLog>) {
        let now = Instant::now();
        let due: Vec<_> = logs
            .iter()
            .filter(|(_, log)| log.due <= now)
            .map(|(id, log)| (id.clone(), log.path.clone()))
            .collect();
        let sizes = tokio::task::spawn_blocking(move || {
            due.into_iter().map(|(id, path)| (size(&path), id, path)).collect::<Vec<_>>()
        });
        let Ok(sizes) = sizes.await else { return };
        let mut full = Vec::new();
        for (found, id, path) in sizes {
            let Some(log) = logs.get_mut(&id) else { continue };
            log.due = now + self.limits.interval;
            match found {
                Ok(Some(size)) => {
                    let (before, at) = log.last.unwrap_or((0, log.since));
                    let grown = size.checked_sub(before).map(|bytes| Growth { bytes, during: now - at });
                    log.last = Some((size, now));
                    if size >= self.limits.max_size {
                        full.push((id, path, grown, log.compressing.take()));
                    } else {
                        log.due = now + next_check(size, self.limits.max_size, grown, self.limits.interval);
                    }
                }
                // Gone: a rotation was cut off between moving the log aside and having it reopened.
                Ok(None) => self.reopen(&id, &path).await,
                Err(error) => tracing::warn!(log = %path.display(), %error, "cannot read a log's size"),
            }
        }
        let mut rotations = stream::iter(full)
            .map(|(id, path, grown, compressing)| async move {
                if let Some(compressing) = compressing {
                    let _ = compressing.await;
                }
                (self.rotate(&id, &path).await, id, path, grown)
            })
            .buffer_unordered(self.limits.workers);
        while let Some((done, id, path, grown)) = rotations.next().await {
            let (Some(log), Some(rotation)) = (logs.get_mut(&id), done) else { continue };
            log.compressing = Some(tokio::task::spawn_blocking(move || {
                if let Err(error) = rotation.compress() {
                    tracing::warn!(log = %path.display(), %error, "an older log was not compressed");
                }
            }));
            // How quickly the last one filled says when to check the new one.
            let now = Instant::now();
            log.last = Some((0, now));
            log.due = now + next_check(0, self.limits.max_size, grown, self.limits.interval);
        }
    }

    async fn rotate(&self, id: &ContainerId, path: &Path) -> Option<Rotation> {
        let (root, log, files) = (self.root.clone(), path.to_owned(), self.limits.max_files);
        let followers = self.followers.clone();
        let begun = tokio::task::spawn_blocking(move || {
            Rotation::begin(&root, &log, files, Timestamp::now(), &followers)
        })
        .await;
        let rotation = match begun {
            Ok(Ok(rotation)) => rotation,
            Ok(Err(error)) => {
                tracing::warn!(container = %id, log = %path.display(), %error, "log not rotated");
                return None;
            }
            Err(_) => return None,
        };
        let Err(error) = self.runtime.reopen_log(id).await else {
            self.metrics.log_rotated();
            return Some(rotation);
        };
        tracing::warn!(container = %id, log = %path.display(), %error, "log not rotated: the runtime did not reopen it");
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || rotation.undo()).await {
            tracing::warn!(log = %path.display(), %error, "the log could not be put back");
        }
        None
    }

    async fn reopen(&self, id: &ContainerId, path: &Path) {
        if let Err(error) = self.runtime.reopen_log(id).await {
            tracing::debug!(container = %id, log = %path.display(), %error, "a log is missing and was not reopened");
        }
    }
}

/// Only of running containers: others write no more, and what they wrote is to stay where it is.
fn follow(registry: &Registry, logs: &mut HashMap<ContainerId, RotatedLog>) {
    let mut gone: HashMap<ContainerId, RotatedLog> = std::mem::take(logs);
    for pod in registry.running() {
        for c in pod.running().filter(|c| !c.log_path.is_empty()) {
            let log = gone.remove(&c.id).unwrap_or_else(|| RotatedLog {
                path: c.log_path.clone().into(),
                since: Instant::now(),
                due: Instant::now() + FIRST_CHECK,
                last: None,
                compressing: None,
            });
            logs.insert(c.id.clone(), log);
        }
    }
}
