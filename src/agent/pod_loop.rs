//! The way of a pod into its worker: both sources and the runtime are heard here, and orders go out.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use keelson_apiserver::PodEvent;
use keelson_core::ids::PodUid;
use keelson_core::observed::ObservedPod;
use keelson_core::qos::QosClass;
use keelson_core::resources::qos_cgroup_shares;
use keelson_cri::{PodHint, RuntimeChange, Survey, observe_pod, survey};
use keelson_host::static_pods::ManifestSet;
use tokio::sync::{mpsc, watch};

use crate::admission::Admission;
use crate::context::Context;
use crate::desired_store::DesiredStore;
use crate::mirror::{self, NodeIdentity, Step};
use crate::orphans;
use crate::status_writer::Target;
use crate::supervisor::Supervisor;
use crate::worker::Order;

pub type PodEvents = Pin<Box<dyn Stream<Item = PodEvent> + Send>>;
pub type StaticSets = mpsc::Receiver<Arc<ManifestSet>>;

pub struct PodLoop {
    pub ctx: Arc<Context>,
    pub api: Option<PodEvents>,
    pub statics: StaticSets,
    pub runtime: mpsc::Receiver<RuntimeChange>,
    /// Known once the node is registered; mirrors need it.
    pub node: watch::Receiver<Option<NodeIdentity>>,
    pub admission: Admission,
}

struct State {
    ctx: Arc<Context>,
    store: DesiredStore,
    supervisor: Supervisor,
    admission: Admission,
    /// What the runtime held when the agent came up and nobody has claimed yet.
    found: BTreeMap<PodUid, ObservedPod>,
    /// Pods that the runtime would not tell about then. Whatever is on disk may be theirs.
    unread: BTreeSet<PodUid>,
    orphans_settled: bool,
    complaints: BTreeSet<String>,
    burstable_shares: i64,
    tell_stray: Option<mpsc::Sender<ObservedPod>>,
}

impl PodLoop {
    /// Runs until dropped. Pods that are running go on without it.
    pub async fn run(mut self) {
        let Survey { pods: found, unread } = first_look(&self.ctx).await;
        tracing::info!(pods = found.len(), "found in the runtime");
        for (uid, error) in &unread {
            tracing::warn!(%uid, %error, "the runtime holds a pod that it does not tell about; it is left alone");
        }
        let mut state = State {
            supervisor: Supervisor::new(self.ctx.clone()),
            ctx: self.ctx,
            store: DesiredStore::default(),
            admission: self.admission,
            found,
            unread: unread.into_keys().collect(),
            orphans_settled: false,
            complaints: BTreeSet::new(),
            burstable_shares: 0,
            tell_stray: None,
        };
        let (tell, mut strays) = mpsc::channel(16);
        state.tell_stray = Some(tell);
        let mut mirrors = tokio::time::interval(Duration::from_secs(30));
        mirrors.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut connected = true;
        loop {
            state.ctx.pulse.pod_loop_turned();
            let mut mirrors_due = false;
            tokio::select! {
                event = next(&mut self.api) => {
                    if let PodEvent::Disconnected(why) = &event {
                        if std::mem::take(&mut connected) {
                            tracing::warn!(error = why, "the apiserver cannot be heard; pods go on as they are");
                        }
                    } else if !std::mem::replace(&mut connected, true) {
                        tracing::info!("the apiserver is heard again");
                    }
                    mirrors_due = state.heard(event);
                }
                Some(set) = self.statics.recv() => {
                    state.manifests(&set);
                    mirrors_due = true;
                }
                Some(change) = self.runtime.recv() => state.runtime_changed(change),
                Some(left) = strays.recv() => state.stray(left),
                uid = state.supervisor.ended() => {
                    state.ended(&uid);
                    mirrors_due = true;
                }
                Ok(()) = self.node.changed() => mirrors_due = true,
                _ = mirrors.tick() => mirrors_due = true,
            }
            let node = self.node.borrow().clone();
            if mirrors_due && let Some(node) = node {
                state.settle_mirrors(&node);
            }
            state.settle_orphans();
            state.weigh_burstable();
        }
    }
}

async fn next(api: &mut Option<PodEvents>) -> PodEvent {
    match api {
        Some(stream) => match stream.next().await {
            Some(event) => event,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// The runtime is the record: nothing is decided before it has been read once.
async fn first_look(ctx: &Context) -> Survey {
    let mut pause = Duration::from_millis(100);
    loop {
        match survey(&ctx.runtime).await {
            Ok(found) => return found,
            Err(e) => {
                tracing::warn!(error = %e, retry_in = ?pause, "the runtime cannot be read yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

impl State {
    /// Returns whether mirrors may be concerned.
    fn heard(&mut self, event: PodEvent) -> bool {
        match event {
            PodEvent::Synced(pods) => {
                let changed = self.store.replace_api(pods);
                let known: Vec<_> = self.supervisor.uids().cloned().collect();
                changed
                    .into_iter()
                    .chain(known)
                    .collect::<BTreeSet<_>>()
                    .iter()
                    .for_each(|uid| self.dispatch(uid));
                true
            }
            PodEvent::Applied(pod) => {
                let is_mirror = mirror::is_mirror(&pod);
                if let Some(uid) = self.store.apply_api(pod) {
                    self.dispatch(&uid);
                }
                is_mirror
            }
            PodEvent::Deleted(pod) => {
                let is_mirror = mirror::is_mirror(&pod);
                if let Some(uid) = self.store.delete_api(&pod) {
                    self.dispatch(&uid);
                }
                is_mirror
            }
            PodEvent::Disconnected(_) => false,
        }
    }

    fn manifests(&mut self, set: &ManifestSet) {
        let mut good = vec![];
        let mut complaints = BTreeSet::new();
        for manifest in set {
            match manifest {
                Ok(pod) => good.push(pod.clone()),
                Err(e) => {
                    let text = e.to_string();
                    if !self.complaints.contains(&text) {
                        tracing::error!(error = text, "a manifest was refused; the others go on");
                        self.ctx.node_event(true, "FailedManifest", &text);
                    }
                    complaints.insert(text);
                }
            }
        }
        self.complaints = complaints;
        for uid in self.store.replace_statics(good) {
            self.dispatch(&uid);
        }
    }

    /// Hands a pod's latest state to its worker.
    fn dispatch(&mut self, uid: &PodUid) {
        let desired = self.store.get(uid);
        let Some(desired) = desired else {
            self.supervisor.unqueue(uid);
            if self.supervisor.has(uid) {
                self.supervisor.order(uid, Order { desired: None, rejected: None }, None);
            }
            return;
        };
        self.bind_status(uid);
        let mut rejected = None;
        if !self.supervisor.has(uid) {
            // What already runs was admitted by whoever started it.
            if !self.found.contains_key(uid)
                && let Err(refusal) = self.admission.admit(&desired, self.store.all())
            {
                tracing::warn!(pod = desired.name(), namespace = desired.namespace(), %uid, reason = refusal.reason, message = refusal.message, "pod refused");
                self.ctx.pod_event(&desired.pod, true, &refusal.reason, &refusal.message, None);
                self.ctx.metrics.pod_rejected(&refusal.reason);
                rejected = Some((refusal.reason, refusal.message));
            }
        } else {
            rejected = self.admission.verdict(uid);
        }
        if let Some(r) = &rejected {
            self.admission.remember(uid, r.clone());
        }
        let found = self.found.remove(uid);
        self.supervisor.order(uid, Order { desired: Some(desired), rejected }, found);
    }

    /// Which API object shows this pod.
    fn bind_status(&self, uid: &PodUid) {
        let Some(desired) = self.store.get(uid) else { return };
        let object = match desired.source {
            keelson_core::desired::PodSource::Api => Some(desired.pod.clone()),
            keelson_core::desired::PodSource::Static => self
                .store
                .mirror_of(&desired.pod)
                .filter(|m| {
                    m.metadata.annotations.as_ref().and_then(|a| a.get(mirror::MIRROR)).map(String::as_str)
                        == Some(uid.as_str())
                })
                .cloned(),
        };
        let target = object.as_ref().map(|pod| Target {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        });
        self.ctx.statuses.bind(uid, target, object.as_deref());
    }

    fn runtime_changed(&mut self, change: RuntimeChange) {
        match change {
            RuntimeChange::Pod(uid) => {
                if !self.supervisor.ring(&uid) && self.orphans_settled && self.store.get(&uid).is_none() {
                    self.look_for_stray(uid);
                }
            }
            RuntimeChange::Resync => self.supervisor.ring_all(),
        }
    }

    /// Something moved in a pod that nobody looks after. Mostly it is the echo of its removal; but a call that timed out
    /// may have been carried out after its pod was gone. Looked at beside the loop, which must not wait for the runtime.
    fn look_for_stray(&self, uid: PodUid) {
        let (Some(tell), ctx) = (self.tell_stray.clone(), self.ctx.clone()) else { return };
        tokio::spawn(async move {
            let hint = PodHint { namespace: "", name: "" };
            match observe_pod(&ctx.runtime, &uid, hint).await {
                Ok(left) if left.sandboxes.is_empty() && left.containers.is_empty() => {}
                Ok(left) => drop(tell.send(left).await),
                Err(e) => tracing::debug!(%uid, error = %e, "a stray pod could not be looked at"),
            }
        });
    }

    fn stray(&mut self, left: ObservedPod) {
        let uid = left.uid.clone();
        if !self.supervisor.has(&uid) && self.store.get(&uid).is_none() {
            tracing::info!(%uid, namespace = left.namespace, pod = left.name, "left over from a pod that is gone; taking it down");
            self.supervisor.order(&uid, Order { desired: None, rejected: None }, Some(left));
        }
    }

    fn ended(&mut self, uid: &PodUid) {
        self.admission.forget(uid);
        self.ctx.view.remove(uid);
        self.ctx.inventory.remove(uid);
        self.ctx.metrics.forget(uid);
        self.ctx.statuses.forget(uid);
        if let Some(api) = &self.ctx.api {
            api.objects.release(uid);
            api.tokens.release(uid);
        }
        // The worker may have died, or its manifest may have come back under the same uid.
        if self.store.get(uid).is_some_and(|d| d.pod.metadata.deletion_timestamp.is_none()) {
            self.dispatch(uid);
        }
    }

    fn settle_mirrors(&mut self, node: &NodeIdentity) {
        let Some(api) = self.ctx.api.as_ref().map(|a| a.api.clone()) else { return };
        if !self.store.api_synced() {
            return;
        }
        let mut named = BTreeSet::new();
        for (uid, pod) in self.store.statics() {
            named.insert(crate::desired_store::full_name(pod));
            if !self.supervisor.has(uid) {
                continue; // the old revision is still stopping; its mirror shows that
            }
            let (namespace, name) = crate::desired_store::full_name(pod);
            match mirror::step(pod, uid, self.store.mirror_of(pod).map(|m| &**m), node) {
                Step::Keep => {}
                Step::Create(mirror) => {
                    let api = api.clone();
                    tokio::spawn(async move {
                        if let Err(e) = api.create_mirror(&mirror).await {
                            tracing::warn!(namespace, pod = name, error = %e, "mirror not created, will try again");
                        }
                    });
                }
                Step::Delete { uid } => delete_mirror(api.clone(), namespace, name, uid),
            }
        }
        for mirror in self.store.mirrors() {
            let (namespace, name) = crate::desired_store::full_name(mirror);
            let running = self.supervisor.runs_static(&namespace, &name);
            if !named.contains(&(namespace.clone(), name.clone())) && !running {
                delete_mirror(api.clone(), namespace, name, mirror.metadata.uid.clone().unwrap_or_default());
            }
        }
    }

    /// Once every source has spoken, what nobody asked for is taken down: pods deleted while no agent ran.
    fn settle_orphans(&mut self) {
        if self.orphans_settled || !self.store.complete(self.ctx.api.is_some()) {
            return;
        }
        self.orphans_settled = true;
        let mut left = std::mem::take(&mut self.found);
        orphans::on_disk(&self.ctx, &mut left, |uid| {
            self.supervisor.has(uid) || self.store.get(uid).is_some() || self.unread.contains(uid)
        });
        for (uid, observed) in left {
            tracing::info!(%uid, namespace = observed.namespace, pod = observed.name, "nobody asks for this pod any more; taking it down");
            self.supervisor.order(&uid, Order { desired: None, rejected: None }, Some(observed));
        }
    }
}

impl State {
    /// Burstable pods together weigh against the others what they request together.
    fn weigh_burstable(&mut self) {
        let live = self.store.all().map(|(_, pod)| &**pod).filter(|p| {
            p.status.as_ref().is_none_or(|s| !matches!(s.phase.as_deref(), Some("Succeeded" | "Failed")))
        });
        let shares = qos_cgroup_shares(QosClass::Burstable, live);
        if std::mem::replace(&mut self.burstable_shares, shares) == shares {
            return;
        }
        let (cgroups, wanted) = (self.ctx.cgroups.clone(), u64::try_from(shares).unwrap_or(2));
        tokio::task::spawn_blocking(move || {
            if let Err(e) = cgroups.set_qos(QosClass::Burstable, wanted) {
                tracing::warn!(error = %e, "the weight of burstable pods is not set");
            }
        });
    }
}

fn delete_mirror(api: keelson_apiserver::Api, namespace: String, name: String, uid: String) {
    tokio::spawn(async move {
        match api.delete_pod(&namespace, &name, &uid).await {
            Err(e) if !e.is_not_found() => {
                tracing::warn!(namespace, pod = name, error = %e, "mirror not deleted, will try again");
            }
            _ => {}
        }
    });
}
