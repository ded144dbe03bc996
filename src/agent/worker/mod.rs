//! One task for each pod: observe, decide, act, and again.
//!
//! The worker decides nothing. What it remembers between two rounds is `PodState`, and what that means is
//! `keelson_core`'s to say; here the runtime is asked, actions are carried out, and reports are handed on.

mod act;
mod blocking;
mod inbox;
mod interrupt;
mod meanwhile;
mod probes;
mod report;
mod timeline;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use keelson_core::backoff::{CrashPolicy, Retry};
use keelson_core::facts::Facts;
use keelson_core::ids::PodUid;
use keelson_core::observed::ObservedPod;
use keelson_core::plan::{Plan, advance, plan};
use keelson_core::pod::{CleanUp, Order, PodState, Waiting};
use keelson_core::qos::{QosClass, qos_of};
use keelson_core::timeline::{Beginning, PodTimeline};
use keelson_core::volumes::Change;
use keelson_cri::{PodHint, observe_pod};
use tokio::sync::{Notify, watch};

use crate::node::Node;
use crate::probe::prober::Prober;
use crate::registry::timelines::Recorder;
use inbox::{Inbox, Wake};
use report::termination_messages;

pub struct Worker {
    node: Arc<Node>,
    uid: PodUid,
    inbox: Inbox,
    prober: Prober,
    state: PodState,
    observed: ObservedPod,
    /// What the last plan holds back, by container, and why.
    held_back: BTreeMap<String, Waiting>,
    /// Something has happened since the pod was observed.
    stale: bool,
    /// After the runtime could not be asked.
    observe_retry: Retry,
    /// Writes the pod's timeline.
    recorder: Recorder,
}

/// How a worker's life ended.
pub enum Ended {
    /// Nothing of the pod is left on this node.
    Gone,
    /// The agent is stopping; the pod goes on.
    Abandoned,
}

/// The runtime could not be asked how the pod stands.
struct Unobserved;

impl Worker {
    pub fn new(
        node: Arc<Node>,
        uid: PodUid,
        orders: watch::Receiver<Order>,
        bell: Arc<Notify>,
        found: Option<ObservedPod>,
    ) -> Self {
        let desired = orders.borrow().desired.clone();
        let (namespace, name) = match (&desired, &found) {
            (Some(d), _) => (d.namespace().to_owned(), d.name().to_owned()),
            (None, Some(o)) => (o.namespace.clone(), o.name.clone()),
            (None, None) => Default::default(),
        };
        let inbox = Inbox::new(orders, bell, node.api.as_ref());
        let recorder = node.registry.timelines().of(&uid, |agent_began| match &desired {
            Some(desired) => Beginning::desired(desired, found.is_some(), agent_began),
            None => Beginning::left(&uid, &namespace, &name, agent_began),
        });
        let prober = Prober::new(inbox.probe_bell(), probes::reports(&node, &recorder, desired.as_ref()));
        let stale = found.is_none();
        let observed = found.unwrap_or_else(|| ObservedPod::empty(uid.clone(), &namespace, &name));
        let mut state = PodState::new(desired, &observed, crash_policy(&node));
        state.resume_resize(node.actuated.get(&uid).as_deref(), &observed);
        Self {
            state,
            node,
            uid,
            inbox,
            prober,
            observed,
            held_back: BTreeMap::new(),
            stale,
            observe_retry: Retry::default(),
            recorder,
        }
    }

    pub async fn run(mut self) -> Ended {
        if !self.stale {
            self.take_stock(&self.observed);
            self.recorder.record(|timeline, now| timeline.found(&self.observed, now));
        }
        let began = self.recorder.record(PodTimeline::worker_began);
        began.into_iter().for_each(|after| self.node.reports.metrics.starts.worker_began(after));
        loop {
            if self.stale && Box::pin(self.observe()).await.is_err() {
                if !self.wait(self.observe_retry.at()).await {
                    return Ended::Abandoned;
                }
                self.stale = true;
                continue;
            }
            let order = self.inbox.latest_order();
            self.state.take_order(&order);
            self.record_actuated();
            let plan = self.decide(&order);
            let events = self.state.report_backoff(&plan, &self.observed);
            self.report_events(&events);
            if self.state.clean_up == CleanUp::Gone {
                return Ended::Gone;
            }
            let now = Timestamp::now();
            if plan.actions.is_empty() || self.state.held_until(now).is_some() {
                let softened = self.state.soften_image_failures();
                if !softened.is_empty() {
                    self.report_events(&softened);
                    continue;
                }
                self.record_waits(&plan);
                if !self.wait(self.state.wake_at(&plan, now)).await {
                    return Ended::Abandoned;
                }
            } else {
                self.report_plan(&plan);
                // On the heap, so that a pod at rest does not keep room for all that it might be doing.
                Box::pin(self.execute(plan.actions)).await;
                self.record_actuated();
            }
        }
    }

    /// One round of deciding: move along the pod's life, plan, and report how it stands.
    fn decide(&mut self, order: &Order) -> Plan {
        let now = Timestamp::now();
        self.state.previous_status = self.published().unwrap_or_else(|| self.state.previous_status.clone());
        let next = advance(order, &self.state, &self.observed, now);
        if next != self.state.lifecycle {
            tracing::debug!(from = ?self.state.lifecycle, to = ?next, "lifecycle");
        }
        self.record_end(&next);
        let event = self.state.enter(next);
        self.report_events(event.as_slice());
        self.state.refresh_volumes(now);
        let resized = self.state.review_resize(&self.observed);
        self.report_events(resized.as_slice());
        // Before the plan: what a sidecar's probe is known to have said lets the next container go on.
        self.follow_probes();
        let facts = self.facts();
        let plan = plan(&self.state, &self.observed, &facts);
        self.held_back.clone_from(&plan.waiting);
        if self.state.is_reported() {
            self.publish(&facts);
        }
        plan
    }

    fn facts(&self) -> Facts {
        Facts {
            now: Timestamp::now(),
            probes: self.prober.verdicts(),
            host_ips: self.node.state.addresses(),
            runtime_name: self.node.state.runtime_name(),
            recursive_read_only: self.recursive_read_only(),
        }
    }

    /// Whether the handler that runs this pod can mount recursively read-only.
    fn recursive_read_only(&self) -> bool {
        let handler = self.observed.latest_sandbox().map(|sandbox| sandbox.runtime_handler.as_str());
        self.node.state.recursive_read_only(handler.unwrap_or_default())
    }

    /// Asks the runtime how the pod stands, and the disk what its dead containers left as a message.
    async fn observe(&mut self) -> Result<(), Unobserved> {
        // Cleared first: what happens meanwhile rings again.
        self.stale = false;
        let hint = PodHint { namespace: &self.observed.namespace, name: &self.observed.name };
        match observe_pod(&self.node.runtime, &self.uid, hint).await {
            Ok(observed) => self.observed = observed,
            Err(e) => {
                tracing::warn!(error = %e, "cannot observe the pod");
                self.stale = true;
                self.observe_retry.failed(Timestamp::now());
                self.record_unobserved(&e);
                return Err(Unobserved);
            }
        }
        self.observe_retry.succeeded();
        self.take_stock(&self.observed);
        self.state.observed(&self.observed);
        self.recorder.record(|timeline, now| timeline.observed(&self.observed, now));
        for (id, message) in termination_messages(&self.state, &self.observed).await {
            self.record_exit(&id, &message);
            self.state.message_read(id, message);
        }
        Ok(())
    }

    /// Keeps what the cgroups have for the next agent.
    fn record_actuated(&self) {
        if let Some(actuated) = &self.state.actuated {
            self.node.actuated.set(&self.uid, actuated);
        }
    }

    /// Lets the others know what runs.
    fn take_stock(&self, observed: &ObservedPod) {
        let qos = self.state.desired.as_ref().map_or(QosClass::BestEffort, |d| qos_of(&d.pod));
        self.node.registry.observe(observed, qos);
    }

    /// Until something happens that could change a decision. `false`: the agent is stopping.
    async fn wait(&mut self, until: Option<Timestamp>) -> bool {
        match self.inbox.wait(until).await {
            Wake::Order | Wake::Probes | Wake::Time => {}
            Wake::Runtime => self.stale = true,
            Wake::Object(key) => self.state.object_changed(act::change(key.as_ref())),
            Wake::TrustBundles => self.state.object_changed(Change::TrustBundles),
            Wake::Closed => return false,
        }
        true
    }
}

fn crash_policy(node: &Node) -> CrashPolicy {
    CrashPolicy::up_to(node.settings.kubelet.crash_loop_back_off.max_container_restart_period.get())
}
