//! Runs the probes of one pod's containers: a task for each probe of each running instance, ended with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use keelson_core::facts::ProbeVerdicts;
use keelson_core::ids::ContainerId;
use keelson_core::probe::{Outcome, ProbeKind, ProbeSettings, ProbeState};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::probe::handler::{self, Place};
use crate::probe::resolver::Resolver;

/// What a probe reports besides its verdict, for events.
pub type Report = Arc<dyn Fn(&str, ProbeKind, &Outcome) + Send + Sync>;

pub struct Prober {
    verdicts: Arc<Mutex<BTreeMap<ContainerId, ProbeVerdicts>>>,
    tasks: BTreeMap<ContainerId, Vec<AbortHandle>>,
    changed: Arc<Notify>,
    report: Report,
    resolver: Resolver,
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

    /// Starts the probes of a running instance. `up` is how long it has been running: after a restart of the agent
    /// the initial delay has mostly passed, and `was_ready` is what the status said, so that a restart of the agent
    /// takes no pod out of service.
    pub fn watch(&mut self, place: Place, up: Duration, was_ready: bool, was_started: bool) {
        let id = place.container.clone();
        let has = |kind: ProbeKind| kind.of(&place.spec).is_some();
        let verdicts = ProbeVerdicts {
            started: !has(ProbeKind::Startup) || was_started,
            ready: !has(ProbeKind::Readiness) || was_ready,
            unhealthy: None,
        };
        lock(&self.verdicts).insert(id.clone(), verdicts);
        let mut tasks = vec![];
        for kind in ProbeKind::ALL {
            let Some(probe) = kind.of(&place.spec) else { continue };
            let task = Task {
                kind,
                probe: probe.clone(),
                settings: ProbeSettings::from(probe),
                place: place.clone(),
                verdicts: self.verdicts.clone(),
                changed: self.changed.clone(),
                report: self.report.clone(),
            };
            let resumed = match kind {
                ProbeKind::Startup => was_started,
                ProbeKind::Liveness => true,
                ProbeKind::Readiness => was_ready,
            };
            tasks.push(tokio::spawn(task.run(up, resumed)).abort_handle());
        }
        self.tasks.insert(id, tasks);
    }

    /// Ends the probes of every instance that is not in `running`.
    pub fn keep_only(&mut self, running: &[&ContainerId]) {
        self.tasks.retain(|id, tasks| {
            let keep = running.contains(&id);
            if !keep {
                tasks.iter().for_each(AbortHandle::abort);
            }
            keep
        });
        lock(&self.verdicts).retain(|id, _| running.contains(&id));
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.keep_only(&[]);
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
    async fn run(self, up: Duration, resumed: bool) {
        let mut state =
            ProbeState { passing: resumed || self.kind.initially(), ..ProbeState::new(self.kind) };
        if self.kind == ProbeKind::Startup && resumed {
            return;
        }
        let first = self.settings.initial_delay.saturating_sub(up);
        // A restarted agent would otherwise send the probes of all its pods in one instant.
        let spread = if up > self.settings.period {
            jitter(&self.place.container, self.settings.period)
        } else {
            Duration::ZERO
        };
        tokio::time::sleep(first + spread).await;
        loop {
            if self.kind == ProbeKind::Startup || self.started() {
                let outcome = self.probe_once().await;
                (self.report)(&self.place.spec.name, self.kind, &outcome);
                let next = state.step(&self.settings, &outcome);
                self.settle(state, next);
                if self.kind == ProbeKind::Startup && next.passing {
                    return;
                }
                if next.condemns(self.kind, &self.settings) {
                    return; // the worker kills the instance; a new one gets new probes
                }
                state = next;
            } else {
                // Held back until the startup probe has passed, which wakes everyone.
                let woken = self.changed.notified();
                tokio::select! {
                    () = woken => {}
                    () = tokio::time::sleep(self.settings.period) => {}
                }
                if self.started() {
                    continue;
                }
            }
            tokio::time::sleep(self.settings.period).await;
        }
    }

    fn started(&self) -> bool {
        lock(&self.verdicts).get(&self.place.container).is_none_or(|v| v.started)
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
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    async fn probe_once(&self) -> Outcome {
        let timeout = self.settings.timeout;
        if let Some(exec) = &self.probe.exec {
            handler::exec(&self.place, exec.command.as_deref().unwrap_or_default(), timeout).await
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
