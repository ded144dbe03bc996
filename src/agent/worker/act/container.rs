//! One container from nothing to running: prepared, created, started, its postStart hook run.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use keelson_core::desired::DesiredPod;
use keelson_core::ids::ContainerId;
use keelson_core::logs::next_attempt;
use keelson_core::plan::{ContainerKind, Kill};
use keelson_core::pod::{ActionOutcome, StartFailure, StartRetry};
use keelson_core::timeline::{Place, Step};
use keelson_cri::CriError;

use super::{Stop, hooks};
use crate::worker::Worker;
use crate::worker::blocking::blocking;

impl Worker {
    pub(super) async fn start_container(
        &mut self,
        name: &str,
        kind: ContainerKind,
        attempt: u32,
        after: Option<ContainerId>,
    ) -> Result<(), Stop> {
        let Some(desired) = self.state.desired.clone() else { return Err(Stop) };
        let Some(container) = find(&desired.pod, name, kind) else { return Err(Stop) };
        if let Some(before) = after.and_then(|id| self.observed.containers.iter().find(|c| c.id == id)) {
            let was_up = before.up_time();
            self.settle(ActionOutcome::RestartBegun { name: name.to_owned(), was_up })?;
        }
        let attempt = self.free_attempt(&desired, name, attempt).await;
        let result = match self.create(&desired, &container, kind, attempt).await {
            Some(result) => result,
            None => return Err(Stop),
        };
        let id = result.as_ref().ok().cloned();
        self.settle(ActionOutcome::ContainerStarted { name: name.to_owned(), result: result.map(drop) })?;
        let Some(id) = id else { return Err(Stop) };
        self.node.reports.metrics.container_started(match kind {
            ContainerKind::Init | ContainerKind::Sidecar => "init_container",
            ContainerKind::Main => "container",
            ContainerKind::Ephemeral => "ephemeral_container",
        });
        self.await_container(&container, kind);
        self.link_log(&desired, name, attempt, &id).await;
        let post_start = container.lifecycle.as_ref().and_then(|l| l.post_start.clone());
        match post_start {
            Some(hook) => self.post_start(&container, &id, &hook).await,
            None => Ok(()),
        }
    }

    /// What a container that was started is waited for.
    fn await_container(&self, container: &Container, kind: ContainerKind) {
        let probed = container.startup_probe.is_some() || container.readiness_probe.is_some();
        let (step, place) = match kind {
            ContainerKind::Init => (Step::Run, Place::Container),
            ContainerKind::Main | ContainerKind::Sidecar if probed => (Step::Ready, Place::Probe),
            ContainerKind::Main | ContainerKind::Sidecar => (Step::Ready, Place::Agent),
            ContainerKind::Ephemeral => return,
        };
        self.recorder.record(|timeline, now| timeline.begin(step, Some(&container.name), place, now));
    }

    /// Prepares, creates and starts it. `None`: it was given up for a more urgent order.
    async fn create(
        &self,
        desired: &DesiredPod,
        container: &Container,
        kind: ContainerKind,
        attempt: u32,
    ) -> Option<Result<ContainerId, StartFailure>> {
        let name = container.name.as_str();
        let sandbox = self.observed.latest_sandbox()?;
        let config = async {
            self.ensure_own_users(desired, &sandbox.runtime_handler).await?;
            self.sandbox_config(desired, sandbox.attempt, false).await
        };
        let config = match config.await {
            Ok(config) => config,
            Err(e) => return Some(Err(StartFailure::config(e))),
        };
        let prepared = self.unless_urgent(self.prepare(desired, container, kind, attempt, &config)).await?;
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(failure) => return Some(Err(failure)),
        };
        let timing = self.recorder.begin(Step::Created, Some(name), Place::Runtime);
        let images = prepared.mounts.iter().filter(|m| m.image.is_some()).count();
        let created = self.node.runtime.create_container(&sandbox.id, prepared, &config).await;
        timing.ended(&created);
        let error = created.as_ref().err().map(|e| e.message.as_str());
        self.node.reports.metrics.image_volumes(images, error);
        let id = match created {
            Ok(id) => id,
            Err(e) => {
                let retry = if e.reserved_for().is_some() { StartRetry::Soon } else { StartRetry::Later };
                return Some(Err(StartFailure { retry, ..StartFailure::create(e.message) }));
            }
        };
        self.event(false, "Created", "Container created", Some(name));
        let timing = self.recorder.begin(Step::Started, Some(name), Place::Runtime);
        let started = self.node.runtime.start_container(&id).await;
        timing.ended(&started);
        let failed =
            |e: CriError| StartFailure { reason: "RunContainerError", ..StartFailure::create(e.message) };
        Some(started.map(|()| id).map_err(failed))
    }

    /// A runtime that has lost its records would let a new instance write into the log of an earlier one.
    async fn free_attempt(&self, desired: &DesiredPod, container: &str, planned: u32) -> u32 {
        if self.observed.latest(container).is_some() {
            return planned;
        }
        let (logs, uid, own) = (self.node.logs.clone(), self.uid.clone(), container.to_owned());
        let (namespace, pod) = (desired.namespace().to_owned(), desired.name().to_owned());
        match blocking(move || logs.container_files(&namespace, &pod, &uid, &own)).await {
            Ok(files) => next_attempt(planned, files.iter().map(String::as_str)),
            Err(e) => {
                tracing::warn!(container, error = e, "its earlier logs cannot be counted");
                planned
            }
        }
    }

    async fn link_log(&self, desired: &DesiredPod, container: &str, attempt: u32, id: &ContainerId) {
        let logs = self.node.logs.clone();
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
        self.settle(ActionOutcome::PostStartBegun { id: id.clone() })?;
        if self.observe().await.is_ok() {
            let order = self.inbox.latest_order();
            self.decide(&order);
        }
        // An order may have ended the pod in that moment; the hook has no bound of its own then.
        let result = if self.state.lifecycle.is_syncing() {
            let timing = self.recorder.begin(Step::PostStart, Some(&container.name), Place::Hook);
            let ran = self.unless_urgent(hooks::run(&place, hook, None)).await;
            ran.map(|result| {
                timing.ended(&result);
                result.map_err(|e| e.to_string())
            })
        } else {
            None
        };
        let failed = matches!(result, Some(Err(_)));
        let (id, name) = (id.clone(), container.name.clone());
        let done = ActionOutcome::PostStartEnded { id: id.clone(), name: name.clone(), result };
        let settled = self.settle(done);
        if failed {
            // A failed hook is a failed container: its restart policy says what follows.
            let grace_seconds = self.state.desired.as_ref().map_or(30, |d| d.grace().as_secs());
            let message = "FailedPostStartHook".to_owned();
            let kill = Kill { id, name, grace_seconds, message, restart: None, after: vec![] };
            self.kill_containers(vec![kill]).await?;
        }
        settled
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
