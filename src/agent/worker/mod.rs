//! One task for each pod: gather, decide, act, look again.
//!
//! The worker holds no truth of its own. What it keeps between two rounds is what the runtime and the apiserver cannot
//! tell it: back-off, probe verdicts, what failed last and why. Losing all of it costs a few retries, nothing more.

mod clean;
mod execute;
mod hooks;
mod kill;
mod prepare;
mod report;
mod sandbox;
mod start;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use keelson_core::backoff::Backoff;
use keelson_core::desired::{DesiredPod, Lifecycle, TerminationReason};
use keelson_core::facts::{CleanUp, Facts, VolumesState, Waiting};
use keelson_core::ids::{ContainerId, PodUid};
use keelson_core::observed::{ContainerState, ObservedPod, SandboxState};
use keelson_core::plan::{self, Plan};
use keelson_core::qos::{QosClass, qos_of};
use keelson_cri::{PodHint, observe_pod};
use tokio::sync::{Notify, watch};

use crate::context::Context;
use crate::handler::Place;
use crate::prober::Prober;
use volumes::Mounted;

/// What the supervisor wants of a pod. The latest order is the only one that counts.
#[derive(Debug, Clone)]
pub struct Order {
    /// `None`: no source knows the pod any more.
    pub desired: Option<DesiredPod>,
    /// This node will not run it: reason and message.
    pub rejected: Option<(String, String)>,
}

pub struct Worker {
    ctx: Arc<Context>,
    uid: PodUid,
    orders: watch::Receiver<Order>,
    /// Rung when something happened to the pod in the runtime.
    bell: Arc<Notify>,
    /// The last desired state that was known, for a pod that has vanished from its source.
    last_desired: Option<DesiredPod>,
    observed: ObservedPod,
    stale: bool,
    lifecycle: Lifecycle,
    clean_up: CleanUp,
    previous: PodStatus,
    waiting: BTreeMap<String, Waiting>,
    crash_backoff: BTreeMap<String, Backoff>,
    image_backoff: BTreeMap<String, Backoff>,
    sandbox_failure: Option<Waiting>,
    sandbox_backoff: Backoff,
    /// How often in a row the runtime has said that the sandbox's name is taken.
    name_reserved: u32,
    volumes: VolumesState,
    volumes_backoff: Backoff,
    mounted: Mounted,
    termination_messages: BTreeMap<ContainerId, String>,
    hooks_running: Vec<ContainerId>,
    pre_stopped: BTreeSet<ContainerId>,
    backoff_said: BTreeMap<String, ContainerId>,
    prober: Prober,
    probed: Arc<Notify>,
    /// After an action failed whose failure has no place of its own in the status.
    retry: Retry,
    /// After the runtime could not be asked.
    look_retry: Retry,
    /// When a pod that is new here was first seen, until it runs.
    new_since: Option<Instant>,
}

/// Pauses after failures of clean-up and observation: short at first, never long.
#[derive(Default)]
struct Retry {
    failures: u32,
    at: Option<Timestamp>,
}

impl Retry {
    fn failed(&mut self, now: Timestamp) {
        let pause = Duration::from_millis(250u64 << self.failures.min(6));
        self.failures += 1;
        self.at = now.checked_add(pause).ok();
    }
    fn succeeded(&mut self) {
        *self = Self::default();
    }
}

/// How a worker's life ended.
pub enum Ended {
    /// Nothing of the pod is left on this node.
    Gone,
    /// The agent is stopping; the pod goes on.
    Abandoned,
}

impl Worker {
    pub fn new(
        ctx: Arc<Context>,
        uid: PodUid,
        orders: watch::Receiver<Order>,
        bell: Arc<Notify>,
        found: Option<ObservedPod>,
    ) -> Self {
        let first = orders.borrow().desired.clone();
        let (namespace, name) = match (&first, &found) {
            (Some(d), _) => (d.namespace().to_owned(), d.name().to_owned()),
            (None, Some(o)) => (o.namespace.clone(), o.name.clone()),
            (None, None) => Default::default(),
        };
        let previous = first.as_ref().and_then(|d| d.pod.status.clone()).unwrap_or_default();
        let probed = Arc::new(Notify::new());
        let report = report::probe_reports(&ctx, first.as_ref());
        let prober = Prober::new(probed.clone(), report);
        let stale = found.is_none();
        Self {
            observed: found.unwrap_or_else(|| ObservedPod::empty(uid.clone(), &namespace, &name)),
            stale,
            last_desired: first,
            lifecycle: Lifecycle::Syncing,
            clean_up: CleanUp::Pending,
            previous,
            waiting: BTreeMap::new(),
            crash_backoff: BTreeMap::new(),
            image_backoff: BTreeMap::new(),
            sandbox_failure: None,
            sandbox_backoff: Backoff::default(),
            name_reserved: 0,
            volumes: VolumesState::Pending,
            volumes_backoff: Backoff::default(),
            mounted: Mounted::default(),
            termination_messages: BTreeMap::new(),
            hooks_running: vec![],
            pre_stopped: BTreeSet::new(),
            backoff_said: BTreeMap::new(),
            prober,
            probed,
            retry: Retry::default(),
            look_retry: Retry::default(),
            new_since: stale.then(Instant::now),
            ctx,
            uid,
            orders,
            bell,
        }
    }

    pub async fn run(mut self) -> Ended {
        self.resume_backoff();
        if !self.stale {
            self.take_stock();
        }
        let mut objects = self.ctx.api.as_ref().map(|a| a.objects.changed());
        loop {
            if self.stale && Box::pin(self.look()).await.is_err() {
                if self.wait(self.look_retry.at, &mut objects).await.is_err() {
                    return Ended::Abandoned;
                }
                self.stale = true;
                continue;
            }
            let order = self.orders.borrow_and_update().clone();
            self.take_desired(order.desired.as_ref());
            let plan = self.decide(&order);
            self.report_backoff(&plan);
            self.follow_probes();
            if self.clean_up == CleanUp::Gone {
                return Ended::Gone;
            }
            let held = self.retry.at.filter(|at| *at > Timestamp::now());
            if plan.actions.is_empty() || held.is_some() {
                if self.soften_image_failures() {
                    continue;
                }
                let until = [plan.requeue_at, self.mounted.refresh_at, held].into_iter().flatten().min();
                if self.wait(until, &mut objects).await.is_err() {
                    return Ended::Abandoned;
                }
            } else {
                self.report_plan(&plan);
                // On the heap, so that a pod at rest does not keep room for all that it might be doing.
                Box::pin(self.execute(plan.actions)).await;
            }
        }
    }

    fn take_desired(&mut self, desired: Option<&DesiredPod>) {
        let Some(desired) = desired else { return };
        // Volumes may show the pod's own labels and annotations.
        let shown = |d: &DesiredPod| (d.pod.metadata.labels.clone(), d.pod.metadata.annotations.clone());
        let same = |old: &DesiredPod| Arc::ptr_eq(&old.pod, &desired.pod) || shown(old) == shown(desired);
        if self.last_desired.as_ref().is_some_and(|old| !same(old)) && self.volumes == VolumesState::Ready {
            self.volumes = VolumesState::Pending;
        }
        self.last_desired = Some(desired.clone());
    }

    /// One round of deciding: move along the pod's life, plan, and tell everybody how it stands.
    fn decide(&mut self, order: &Order) -> Plan {
        if let (Some((reason, message)), true) = (&order.rejected, self.lifecycle.is_syncing()) {
            let reason = TerminationReason::Evicted { reason: reason.clone(), message: message.clone() };
            self.lifecycle = Lifecycle::Terminated { reason };
        }
        let mut facts = self.facts();
        let next = plan::advance(order.desired.as_ref(), &self.observed, &facts);
        if next != self.lifecycle {
            tracing::debug!(from = ?self.lifecycle, to = ?next, "lifecycle");
            self.lifecycle = next.clone();
            facts.lifecycle = next;
            // What failed before does not hold back what is to be done now.
            self.retry.succeeded();
        }
        let Some(desired) = self.last_desired.clone() else {
            return plan::plan_orphan(&self.observed, &facts);
        };
        let plan = plan::plan(&desired, &self.observed, &facts);
        facts.waiting.extend(plan.waiting.clone());
        // Of a pod whose object is gone nobody wants to hear any more.
        let gone = matches!(
            self.clean_up,
            CleanUp::Gone | CleanUp::Finished(TerminationReason::Deleted | TerminationReason::Orphaned)
        );
        if !gone {
            self.publish(&desired, &facts);
        }
        plan
    }

    fn facts(&self) -> Facts {
        Facts {
            now: Timestamp::now(),
            lifecycle: self.lifecycle.clone(),
            clean_up: self.clean_up.clone(),
            probes: self.prober.verdicts(),
            waiting: self.waiting.clone(),
            crash_backoff: self.crash_backoff.clone(),
            volumes: self.volumes.clone(),
            sandbox_failure: self.sandbox_failure.clone(),
            host_ips: self.ctx.host_ips.borrow().clone(),
            termination_messages: self.termination_messages.clone(),
            hooks_running: self.hooks_running.clone(),
            previous: self.previous.clone(),
            runtime_name: self.ctx.runtime_name.borrow().clone(),
            recursive_read_only: self.ctx.recursive_read_only(),
        }
    }

    /// Asks the runtime how the pod stands, and the disk what its dead containers had to say.
    async fn look(&mut self) -> Result<(), ()> {
        // Cleared first: what happens while we look rings again.
        self.stale = false;
        let hint = PodHint { namespace: &self.observed.namespace, name: &self.observed.name };
        let seen = observe_pod(&self.ctx.runtime, &self.uid, hint).await;
        match seen {
            Ok(seen) => {
                self.observed = seen;
                self.take_stock();
            }
            Err(e) => {
                tracing::warn!(error = %e, "cannot observe the pod");
                self.stale = true;
                self.look_retry.failed(Timestamp::now());
                return Err(());
            }
        }
        self.look_retry.succeeded();
        self.forgive_the_sandbox();
        self.read_termination_messages().await;
        Ok(())
    }

    /// Lets the others know what runs.
    fn take_stock(&self) {
        let qos = self.last_desired.as_ref().map_or(QosClass::BestEffort, |d| qos_of(&d.pod));
        self.ctx.inventory.set(&self.observed, qos);
    }

    /// What could not be made or started in a sandbox that is dead now may be tried at once in the next one.
    fn forgive_the_sandbox(&mut self) {
        let dead = self.observed.latest_sandbox().is_some_and(|s| s.state == SandboxState::NotReady);
        if dead {
            let by_sandbox =
                |w: &Waiting| ["CreateContainerError", "RunContainerError"].contains(&w.reason.as_str());
            self.waiting.retain(|_, w| !by_sandbox(w));
        }
    }

    /// After a restart of the agent a crash loop goes on where it was.
    fn resume_backoff(&mut self) {
        let dead = self.observed.containers.iter().filter(|c| c.state == ContainerState::Exited);
        for c in dead {
            let resumed = Backoff::resumed(keelson_core::backoff::CRASH, c.attempt, c.up_time());
            self.crash_backoff.insert(c.name.clone(), resumed);
        }
    }

    /// Probes run for what runs, for as long as it runs and the pod is not on its way out.
    fn follow_probes(&mut self) {
        let Some(desired) = &self.last_desired else { return };
        let Some(spec) = &desired.pod.spec else { return };
        let wanted = self.lifecycle.is_syncing();
        let running: Vec<_> = self.observed.running().filter(|_| wanted).collect();
        self.prober.keep_only(&running.iter().map(|c| &c.id).collect::<Vec<_>>());
        for c in running {
            if self.prober.watches(&c.id) || self.hooks_running.contains(&c.id) {
                continue;
            }
            let mut specs = spec.containers.iter().chain(spec.init_containers.iter().flatten());
            let Some(container) = specs.find(|s| s.name == c.name) else { continue };
            let told = report::told(&self.previous, c);
            let place = Place {
                runtime: self.ctx.runtime.clone(),
                container: c.id.clone(),
                pod_ip: self.pod_ip(spec.host_network == Some(true)),
                spec: Arc::new(container.clone()),
            };
            let up = c.started_at.map(|at| Timestamp::now().duration_since(at));
            let up = up.and_then(|d| Duration::try_from(d).ok()).unwrap_or_default();
            self.prober.watch(place, up, told.ready, told.started);
        }
    }

    fn pod_ip(&self, host_network: bool) -> Option<std::net::IpAddr> {
        if host_network {
            return self.ctx.host_ips.borrow().first().copied();
        }
        self.observed.latest_sandbox().and_then(|s| s.ips.first().copied())
    }

    /// Until something happens that could change a decision. An error means that the agent is stopping.
    async fn wait(
        &mut self,
        until: Option<Timestamp>,
        objects: &mut Option<volumes::Changes>,
    ) -> Result<(), ()> {
        let pause =
            until.map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default());
        tokio::select! {
            order = self.orders.changed() => order.map_err(|_| ())?,
            () = self.bell.notified() => self.stale = true,
            () = self.probed.notified() => {}
            () = volumes::changed(objects, &self.mounted) => self.objects_changed(),
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {
                if self.mounted.refresh_at.is_some_and(|at| at <= Timestamp::now()) {
                    self.mounted.refresh_at = None;
                    self.volumes = VolumesState::Pending;
                }
            }
        }
        Ok(())
    }

    /// Something that the pod refers to has changed: volumes follow, and whoever waited for it tries at once.
    fn objects_changed(&mut self) {
        self.volumes = VolumesState::Pending;
        self.waiting.retain(|_, w| w.reason != "CreateContainerConfigError");
        self.retry.succeeded();
    }
}
