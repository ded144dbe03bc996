//! One container from nothing to running: prepared, created, started, its postStart hook run.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use keelson_core::backoff::{CRASH, IMAGE};
use keelson_core::desired::DesiredPod;
use keelson_core::facts::Waiting;
use keelson_core::ids::ContainerId;
use keelson_core::plan::ContainerKind;

use super::clean::blocking;
use super::execute::Stop;
use super::{Worker, hooks};

/// A container that could not be started, as its status shows it.
pub(super) struct Failure {
    pub reason: &'static str,
    pub message: String,
    /// Image failures serve their own back-off, everything else is tried again after ten seconds or at a change.
    pub image: bool,
    /// A call of an earlier agent still holds the name; it will not for long.
    pub soon: bool,
}

impl Failure {
    pub(super) fn config(message: impl ToString) -> Self {
        Self { reason: "CreateContainerConfigError", message: message.to_string(), image: false, soon: false }
    }
    pub(super) fn create(message: impl ToString) -> Self {
        Self { reason: "CreateContainerError", message: message.to_string(), image: false, soon: false }
    }
}

const RETRY: Duration = Duration::from_secs(10);
const RETRY_SOON: Duration = Duration::from_millis(500);

impl Worker {
    pub(super) async fn start_container(
        &mut self,
        name: &str,
        kind: ContainerKind,
        attempt: u32,
        after: Option<ContainerId>,
    ) -> Result<(), Stop> {
        let Some(desired) = self.last_desired.clone() else { return Err(Stop::Failed) };
        let Some(container) = find(&desired.pod, name, kind) else { return Err(Stop::Failed) };
        let Some(sandbox) = self.observed.latest_sandbox().cloned() else { return Err(Stop::Failed) };
        self.note_restart(name, after.as_ref());

        let config = match self.sandbox_config(&desired, sandbox.attempt, false).await {
            Ok(config) => config,
            Err(e) => return self.not_started(name, Failure::config(e)),
        };
        let prepared =
            match self.unless_urgent(self.prepare(&desired, &container, kind, attempt, &config)).await {
                None => return Err(Stop::Interrupted),
                Some(Err(failure)) => return self.not_started(name, failure),
                Some(Ok(prepared)) => prepared,
            };
        let created = self.ctx.runtime.create_container(&sandbox.id, prepared, &config).await;
        let id = match created {
            Ok(id) => id,
            Err(e) => {
                self.event(true, "Failed", &format!("Error: {}", e.message), Some(name));
                let reserved = e.reserved_for().is_some();
                return self.not_started(name, Failure { soon: reserved, ..Failure::create(e.message) });
            }
        };
        self.event(false, "Created", "Container created", Some(name));
        if let Err(e) = self.ctx.runtime.start_container(&id).await {
            self.event(true, "Failed", &format!("Error: {}", e.message), Some(name));
            let failure = Failure { reason: "RunContainerError", ..Failure::create(e.message) };
            return self.not_started(name, failure);
        }
        self.event(false, "Started", "Container started", Some(name));
        self.ctx.metrics.container_started(match kind {
            ContainerKind::Init | ContainerKind::Sidecar => "init_container",
            ContainerKind::Main => "container",
            ContainerKind::Ephemeral => "ephemeral_container",
        });
        self.waiting.remove(name);
        self.image_backoff.remove(name);
        self.link_log(&desired, name, attempt, &id).await;
        let post_start = container.lifecycle.as_ref().and_then(|l| l.post_start.clone());
        match post_start {
            Some(hook) => self.post_start(&container, &id, &hook).await,
            None => Ok(()),
        }
    }

    /// A restart makes the next one wait longer.
    fn note_restart(&mut self, name: &str, after: Option<&ContainerId>) {
        let Some(before) = after.and_then(|id| self.observed.containers.iter().find(|c| c.id == *id)) else {
            return;
        };
        let was_up = before.up_time();
        let next = self.crash_backoff.get(name).copied().unwrap_or_default().next(CRASH, was_up);
        self.crash_backoff.insert(name.to_owned(), next);
    }

    fn not_started(&mut self, name: &str, failure: Failure) -> Result<(), Stop> {
        let now = Timestamp::now();
        let retry_at = if failure.image {
            let entry = self.image_backoff.entry(name.to_owned()).or_default();
            *entry = entry.next(IMAGE, Duration::ZERO);
            entry.retry_at(now)
        } else {
            now.checked_add(if failure.soon { RETRY_SOON } else { RETRY }).unwrap_or(now)
        };
        tracing::warn!(container = name, reason = failure.reason, error = failure.message, retry_at = %retry_at, "container not started");
        self.ctx.metrics.container_not_started("container", failure.reason);
        let waiting =
            Waiting { reason: failure.reason.into(), message: failure.message, retry_at: Some(retry_at) };
        self.waiting.insert(name.to_owned(), waiting);
        Err(Stop::Failed)
    }

    async fn link_log(&self, desired: &DesiredPod, container: &str, attempt: u32, id: &ContainerId) {
        let logs = self.ctx.logs.clone();
        let (namespace, pod, uid) =
            (desired.namespace().to_owned(), desired.name().to_owned(), self.uid.clone());
        let (container, id) = (container.to_owned(), id.clone());
        let linked = blocking(move || {
            let log = logs.pod(&namespace, &pod, &uid).join(&container).join(format!("{attempt}.log"));
            logs.link(&namespace, &pod, &container, &id, &log)
        });
        if let Err(e) = linked.await {
            tracing::warn!(error = e, "no link for log collectors");
        }
    }

    /// The container runs, but it is not ready before its hook has returned; a hook that fails ends it.
    async fn post_start(
        &mut self,
        container: &Container,
        id: &ContainerId,
        hook: &LifecycleHandler,
    ) -> Result<(), Stop> {
        let Some(place) = self.place(id, &container.name) else { return Ok(()) };
        self.hooks_running.push(id.clone());
        if self.look().await.is_ok() {
            let order = self.orders.borrow().clone();
            self.decide(&order);
        }
        let ran = self.unless_urgent(hooks::run(&place, hook, None)).await;
        self.hooks_running.retain(|h| h != id);
        match ran {
            None => Err(Stop::Interrupted),
            Some(Ok(())) => Ok(()),
            Some(Err(e)) => {
                self.event(
                    true,
                    "FailedPostStartHook",
                    &format!("PostStartHook failed: {e}"),
                    Some(&container.name),
                );
                let message =
                    format!("Container {} failed its postStart hook, will be restarted", container.name);
                let grace = self.spec().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30).max(1);
                let kill = keelson_core::plan::Kill {
                    id: id.clone(),
                    name: container.name.clone(),
                    grace_seconds: grace,
                    message,
                };
                self.kill_containers(vec![kill]).await?;
                Err(Stop::Failed)
            }
        }
    }
}

/// Ephemeral containers carry the same fields under another type.
fn find(pod: &Pod, name: &str, kind: ContainerKind) -> Option<Container> {
    let spec = pod.spec.as_ref()?;
    if kind == ContainerKind::Ephemeral {
        let found = spec.ephemeral_containers.iter().flatten().find(|e| e.name == name)?;
        // Through bytes, which containers are read from anyway: to read one from a tree takes a reader of its own.
        return serde_json::from_slice(&serde_json::to_vec(found).ok()?).ok();
    }
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name).cloned()
}
