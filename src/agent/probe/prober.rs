//! Runs the probes of one pod's containers: a task for each probe of each running instance, ended with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use keelson_core::desired::Lifecycle;
use keelson_core::facts::ProbeVerdicts;
use keelson_core::ids::ContainerId;
use keelson_core::probe::{Outcome, ProbeKind, ProbeSettings, ProbeState, exec_command};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::probe::handler::{self, Place};
use crate::probe::resolver::Resolver;

/// What a probe reports besides its verdict, for events.
pub type Report = Arc<dyn Fn(&str, ProbeKind, &Outcome) + Send + Sync>;

pub struct Prober {
    verdicts: Arc<Mutex<BTreeMap<ContainerId, ProbeVerdicts>>>,
    tasks: BTreeMap<ContainerId, Vec<(ProbeKind, AbortHandle)>>,
    /// The worker's alone: whoever else waited on it would take what it is told.
    changed: Arc<Notify>,
    report: Report,
    resolver: Resolver,
}

/// An instance that runs, and what was known of it before this agent came to it.
pub struct Instance {
    pub place: Place,
    /// How long it has been running. After a restart of the agent the initial delay has mostly passed.
    pub up: Duration,
    /// What the status said, so that a restart of the agent takes no pod out of service.
    pub was_ready: bool,
    pub was_started: bool,
}

impl Prober {
    pub fn new(changed: Arc<Notify>, report: Report) -> Self {
        Self {
            verdicts: Arc::default(),
            tasks: BTreeMap::new(),
            changed,
            report,
            resolver: Resolver::for_pod(),
        }
    }

    /// Shared by all probes and hooks of the pod.
    pub fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    pub fn verdicts(&self) -> BTreeMap<ContainerId, ProbeVerdicts> {
        lock(&self.verdicts).clone()
    }

    pub fn watches(&self, id: &ContainerId) -> bool {
        self.tasks.contains_key(id)
    }

    /// Starts the probes of a running instance that run at this time of the pod's life.
    pub fn watch(&mut self, instance: Instance, lifecycle: &Lifecycle) {
        let Instance { place, up, was_ready, was_started } = instance;
        let id = place.container.clone();
        let has = |kind: ProbeKind| kind.of(&place.spec).is_some();
        let verdicts = ProbeVerdicts {
            started: !has(ProbeKind::Startup) || was_started,
            ready: !has(ProbeKind::Readiness) || was_ready,
            unhealthy: None,
        };
        let started = watch::Sender::new(verdicts.started);
        lock(&self.verdicts).insert(id.clone(), verdicts);
        let task = |kind: ProbeKind| {
            let probe = kind.of(&place.spec).filter(|_| kind.runs_in(lifecycle))?;
            Some(Task {
                kind,
                probe: probe.clone(),
                settings: ProbeSettings::from(probe),
                place: place.clone(),
                verdicts: self.verdicts.clone(),
                changed: self.changed.clone(),
                report: self.report.clone(),
            })
        };
        let mut tasks = vec![];
        for kind in [ProbeKind::Liveness, ProbeKind::Readiness] {
            let passing = if kind == ProbeKind::Readiness { was_ready } else { kind.initially() };
            let run = task(kind).map(|task| task.run_once_started(up, passing, started.subscribe()));
            tasks.extend(run.map(|run| (kind, tokio::spawn(run).abort_handle())));
        }
        if !*started.borrow() {
            let run = task(ProbeKind::Startup).map(|task| task.run_until_started(up, started));
            tasks.extend(run.map(|run| (ProbeKind::Startup, tokio::spawn(run).abort_handle())));
        }
        self.tasks.insert(id, tasks);
    }

    /// Ends the probes of every instance that is not in `running`, and those whose time in the pod's life is over. What
    /// they found of an instance that still runs stands.
    pub fn keep_only(&mut self, running: &[&ContainerId], lifecycle: &Lifecycle) {
        self.tasks.retain(|id, tasks| {
            let here = running.contains(&id);
            tasks.retain(|(kind, task)| {
                let keep = here && kind.runs_in(lifecycle);
                if !keep {
                    task.abort();
                }
                keep
            });
            here
        });
        lock(&self.verdicts).retain(|id, _| running.contains(&id));
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.tasks.values().flatten().for_each(|(_, task)| task.abort());
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Task {
    kind: ProbeKind,
    probe: Probe,
    settings: ProbeSettings,
    place: Place,
    verdicts: Arc<Mutex<BTreeMap<ContainerId, ProbeVerdicts>>>,
    changed: Arc<Notify>,
    report: Report,
}

impl Task {
    async fn run_until_started(self, up: Duration, started: watch::Sender<bool>) {
        self.delay(up).await;
        if self.repeat(false).await {
            started.send_replace(true);
        }
    }

    /// Held back until the startup probe has passed. Where that one has failed, or ended with the pod, it never will.
    async fn run_once_started(self, up: Duration, passing: bool, mut started: watch::Receiver<bool>) {
        self.delay(up).await;
        if started.wait_for(|started| *started).await.is_ok() {
            self.repeat(passing).await;
        }
    }

    async fn delay(&self, up: Duration) {
        let first = self.settings.initial_delay.saturating_sub(up);
        // A restarted agent would otherwise send the probes of all its pods in one instant.
        let spread = if up > self.settings.period {
            jitter(&self.place.container, self.settings.period)
        } else {
            Duration::ZERO
        };
        sleep(first + spread).await;
    }

    /// Until there is nothing more to find out: whether it passed at last.
    async fn repeat(&self, passing: bool) -> bool {
        let mut state = ProbeState { passing, ..ProbeState::new(self.kind) };
        let (began, mut due) = (Instant::now(), Duration::ZERO);
        loop {
            let outcome = self.probe_once().await;
            (self.report)(&self.place.spec.name, self.kind, &outcome);
            let next = state.step(&self.settings, &outcome);
            self.settle(state, next);
            state = next;
            let started = self.kind == ProbeKind::Startup && state.passing;
            // The worker kills a condemned instance; a new one gets new probes.
            if started || state.condemns(self.kind, &self.settings) {
                return state.passing;
            }
            due = self.settings.next_run(due, began.elapsed());
            sleep_until(began + due).await;
        }
    }

    fn settle(&self, before: ProbeState, after: ProbeState) {
        {
            let mut all = lock(&self.verdicts);
            let Some(v) = all.get_mut(&self.place.container) else { return };
            let old = v.clone();
            match self.kind {
                ProbeKind::Startup => v.started = after.passing,
                ProbeKind::Readiness => v.ready = after.passing,
                ProbeKind::Liveness => {}
            }
            if after.condemns(self.kind, &self.settings) && !before.condemns(self.kind, &self.settings) {
                v.unhealthy = Some(self.kind);
            }
            if *v == old {
                return;
            }
        }
        self.changed.notify_one();
    }

    async fn probe_once(&self) -> Outcome {
        let timeout = self.settings.timeout;
        if let Some(exec) = &self.probe.exec {
            let env = self.place.spec.env.as_deref().unwrap_or_default();
            match exec_command(exec.command.as_deref().unwrap_or_default(), env) {
                Ok(command) => handler::exec(&self.place, &command, timeout).await,
                Err(e) => Outcome::Unknown(e.to_string()),
            }
        } else if let Some(http) = &self.probe.http_get {
            handler::http(&self.place, http, timeout).await
        } else if let Some(tcp) = &self.probe.tcp_socket {
            handler::tcp(&self.place, tcp, timeout).await
        } else if let Some(grpc) = &self.probe.grpc {
            handler::grpc(&self.place, grpc, timeout).await
        } else {
            Outcome::Unknown(format!("container {}: the probe has no handler", self.place.spec.name))
        }
    }
}

/// A part of `period` that is the same for one container every time and differs between containers.
fn jitter(id: &ContainerId, period: Duration) -> Duration {
    let sum = id.as_str().bytes().fold(0u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    period.mul_f64(f64::from(sum % 1000) / 1000.0)
}

#[cfg(test)]
mod tests;
