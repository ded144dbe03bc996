//! The way of a pod into its worker: events of both sources and of the runtime come in, orders go out.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use keelson_apiserver::Update;
use keelson_core::desired::{DesiredPod, PodSource};
use keelson_core::ids::PodUid;
use keelson_core::manifest::CONFIG_MIRROR;
use keelson_core::observed::{ObservedPod, ObservedResources};
use keelson_core::pod::{Directive, Order};
use keelson_core::resource_managers::Seen;
use keelson_core::resources::QosCgroups;
use keelson_core::status::has_finished;
use keelson_core::view::refused_manifest;
use keelson_cri::{PodHint, RuntimeChange, Survey, observe_pod, survey};
use keelson_host::static_pods::ManifestSet;
use keelson_kit::backoff::{Backoff, Policy};
use tokio::sync::mpsc;

use crate::node::Node;
use crate::pods::admission::{Admission, Knowledge};
use crate::pods::desired_store::DesiredStore;
use crate::pods::mirror::{self, NodeIdentity};
use crate::pods::mirror_reconcile;
use crate::pods::node_lookup::NodeLookup;
use crate::pods::orphans;
use crate::pods::record;
use crate::pods::resizes::{Resizes, Trigger};
use crate::pods::supervisor::Supervisor;
use crate::report::status_writer::Target;

pub type PodEvents = Pin<Box<dyn Stream<Item = Update<Pod>> + Send>>;
pub type StaticSets = mpsc::Receiver<Arc<ManifestSet>>;

pub struct PodLoop {
    pub node: Arc<Node>,
    pub api: Option<PodEvents>,
    pub statics: StaticSets,
    pub runtime: mpsc::Receiver<RuntimeChange>,
}

struct State {
    node: Arc<Node>,
    store: DesiredStore,
    supervisor: Supervisor,
    admission: Admission,
    resizes: Resizes,
    /// Something has happened that may let a resize be granted which waits, or brought one.
    resizes_due: Option<Trigger>,
    lookup: NodeLookup,
    /// What the runtime held when the agent came up and nobody has claimed yet.
    found: BTreeMap<PodUid, ObservedPod>,
    /// Pods that the runtime would not describe then. Whatever is on disk may be theirs.
    unread: BTreeSet<PodUid>,
    /// Pods among these that came from manifests. Only another manifest can want one of their names.
    from_files: BTreeSet<PodUid>,
    orphans_settled: bool,
    complaints: BTreeSet<String>,
    /// As last written to the cgroups above those of pods.
    classes: Option<QosCgroups>,
    strays: Option<mpsc::Sender<ObservedPod>>,
}

/// How often resizes that wait are looked at again although nothing has happened.
const RESIZE_REVIEW: Duration = Duration::from_secs(180);

impl PodLoop {
    /// Runs until dropped. Pods that are running go on without it.
    pub async fn run(mut self) {
        let Survey { pods: found, unread, from_files } = first_survey(&self.node).await;
        tracing::info!(pods = found.len(), "found in the runtime");
        for (uid, error) in &unread {
            tracing::warn!(%uid, %error, "the runtime holds a pod that it cannot describe; it is left alone");
        }
        self.node.managers.found(&seen(&found));
        self.node.user_namespaces.found(&found).await;
        let mut state = State {
            supervisor: Supervisor::new(self.node.clone()),
            admission: Admission::new(self.node.clone()),
            resizes: Resizes::new(self.node.clone()),
            resizes_due: None,
            lookup: NodeLookup::new(self.node.clone()),
            node: self.node,
            store: DesiredStore::default(),
            found,
            unread: unread.into_keys().collect(),
            from_files,
            orphans_settled: false,
            complaints: BTreeSet::new(),
            classes: None,
            strays: None,
        };
        let (found_stray, mut strays) = mpsc::channel(16);
        state.strays = Some(found_stray);
        let mut mirror_review = tokio::time::interval(Duration::from_secs(30));
        mirror_review.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut resize_review = tokio::time::interval(RESIZE_REVIEW);
        resize_review.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut connected = true;
        // Known once the node is registered; mirrors need it.
        let mut node_uid = state.node.state.uid();
        loop {
            state.node.reports.pulse.pod_loop_turned();
            let mut mirrors_due = false;
            tokio::select! {
                event = next(&mut self.api) => {
                    if let Update::Disconnected(error) = &event {
                        if std::mem::take(&mut connected) {
                            tracing::warn!(%error, "the apiserver cannot be watched; pods go on as they are");
                        }
                    } else if !std::mem::replace(&mut connected, true) {
                        tracing::info!("the apiserver is watched again");
                    }
                    mirrors_due = state.pod_changed(event);
                }
                Some(set) = self.statics.recv() => {
                    state.manifests(&set);
                    mirrors_due = true;
                }
                Some(change) = self.runtime.recv() => state.runtime_changed(change),
                Some(left) = strays.recv() => state.stray(left),
                uids = state.lookup.answered() => {
                    uids.iter().for_each(|uid| state.dispatch_by(uid, Knowledge::Asked));
                }
                uid = state.supervisor.ended() => {
                    state.ended(&uid);
                    mirrors_due = true;
                }
                Ok(()) = node_uid.changed() => mirrors_due = true,
                _ = mirror_review.tick() => mirrors_due = true,
                _ = resize_review.tick() => state.resizes_due = state.resizes_due.or(Some(Trigger::Periodic)),
            }
            let uid = node_uid.borrow().clone();
            if mirrors_due && let Some(uid) = uid {
                let name = state.node.settings.node_name.clone();
                mirror_reconcile::reconcile(
                    &state.node,
                    &state.store,
                    &state.supervisor,
                    &NodeIdentity { name, uid },
                );
            }
            state.settle_orphans();
            state.review_resizes();
            state.set_classes();
        }
    }
}

/// What runs, and on which CPUs.
fn seen(found: &BTreeMap<PodUid, ObservedPod>) -> Vec<Seen> {
    let containers = found.values().flat_map(|pod| pod.running().map(move |c| (pod, c)));
    let seen = containers.map(|(pod, c)| {
        let held = |to: fn(&ObservedResources) -> &str| c.resources.as_ref().and_then(|r| to(r).parse().ok());
        Seen {
            pod: pod.uid.clone(),
            container: c.name.clone(),
            cpus: held(|r| &r.cpuset_cpus).unwrap_or_default(),
            memory_nodes: held(|r| &r.cpuset_mems).unwrap_or_default(),
        }
    });
    seen.collect()
}

async fn next(api: &mut Option<PodEvents>) -> Update<Pod> {
    match api {
        Some(stream) => match stream.next().await {
            Some(event) => event,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// The runtime is the record: nothing is decided before it has been read once.
async fn first_survey(node: &Node) -> Survey {
    const RETRY: Policy = Policy::new(Duration::from_millis(100), Duration::from_secs(5));
    let mut backoff = Backoff::default();
    loop {
        match survey(&node.runtime).await {
            Ok(found) => return found,
            Err(e) => {
                let pause = backoff.fail(RETRY);
                tracing::warn!(error = %e, retry_in = ?pause, "the runtime cannot be read yet");
                tokio::time::sleep(pause).await;
            }
        }
    }
}

impl State {
    /// Returns whether mirrors may be concerned.
    fn pod_changed(&mut self, event: Update<Pod>) -> bool {
        match event {
            Update::Synced { items: pods, .. } => {
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
            Update::Applied(pod) => {
                let is_mirror = mirror::is_mirror(&pod);
                if let Some(uid) = self.store.apply_api(pod) {
                    self.dispatch(&uid);
                }
                is_mirror
            }
            Update::Deleted(pod) => {
                let is_mirror = mirror::is_mirror(&pod);
                if let Some(uid) = self.store.delete_api(&pod) {
                    self.dispatch(&uid);
                }
                is_mirror
            }
            Update::Disconnected(_) => false,
        }
    }

    fn manifests(&mut self, set: &ManifestSet) {
        let mut good = vec![];
        let mut complaints = BTreeSet::new();
        self.node
            .registry
            .refuse(set.iter().filter_map(|m| m.as_ref().err()).map(refused_manifest).collect());
        for manifest in set {
            match manifest {
                Ok(pod) => good.push(pod.clone()),
                Err(e) => {
                    let text = e.to_string();
                    if !self.complaints.contains(&text) {
                        tracing::error!(error = text, "a manifest was refused; the others go on");
                        self.node.node_event(true, "FailedManifest", &text);
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
        self.dispatch_by(uid, Knowledge::Watched);
    }

    fn dispatch_by(&mut self, uid: &PodUid, knowledge: Knowledge) {
        let desired = self.store.get(uid);
        let Some(desired) = desired else {
            self.supervisor.unqueue(uid);
            if self.supervisor.has(uid) {
                self.supervisor.order(uid, Order::vanished(), None);
            } else {
                self.admission.forget(uid);
                self.resizes.forget(uid);
                self.node.registry.remove(uid);
            }
            return;
        };
        self.bind_status(uid);
        let new = !self.supervisor.has(uid);
        let desired = self.resizes.granted(&desired, !new || self.found.contains_key(uid));
        self.resizes_due = Some(if new { Trigger::Added } else { Trigger::Updated });
        let recorder = record::seen(&self.node, &desired, self.found.contains_key(uid));
        if !new && self.resizes.is_unjudged(uid) {
            // Its worker hears of it with what is decided, at the end of this turn.
            return;
        }
        // What already runs was admitted by whoever started it.
        let directive = if new && !self.found.contains_key(uid) {
            let resizes = &self.resizes;
            let all = self.store.all().map(|(uid, pod)| (uid, resizes.counted(uid, pod)));
            match self.admission.decide(&desired, all, knowledge) {
                Some(decided) => {
                    if let Directive::Run(_) = &decided {
                        self.resizes.admitted(&desired);
                    }
                    decided
                }
                None => {
                    record::waits_for_node(&recorder);
                    return self.lookup.want(uid.clone());
                }
            }
        } else {
            if new && let Err(refusal) = self.node.managers.admit(&desired.pod, uid) {
                tracing::warn!(pod = desired.name(), namespace = desired.namespace(), %uid, reason = refusal.reason, message = refusal.message, "runs, but cannot have what it asks for alone");
            }
            self.admission.directive(uid)
        };
        if new {
            record::judged(&recorder, &directive);
        }
        if let (true, Directive::Refuse(refusal)) = (new, &directive) {
            tracing::warn!(pod = desired.name(), namespace = desired.namespace(), %uid, reason = refusal.reason, message = refusal.message, "pod refused");
            self.node.pod_event(&desired.pod, true, &refusal.reason, &refusal.message, None);
            self.node.reports.metrics.pod_rejected(&refusal.reason);
        }
        if new && desired.source == PodSource::Static {
            self.retire_revisions(&desired);
        }
        let found = self.found.remove(uid);
        let resize = self.resizes.order(uid);
        self.supervisor.order(uid, Order { desired: Some(desired), directive, resize }, found);
    }

    /// Grants what can be granted of specs that ask for other resources than their pods have.
    fn review_resizes(&mut self) {
        if !self.store.complete(self.node.api.is_some()) {
            return;
        }
        let Some(trigger) = self.resizes_due.take().filter(|_| self.resizes.any_wish()) else { return };
        let admission = &self.admission;
        let changed = self.resizes.review(&self.store, |uid| admission.has_refused(uid), trigger);
        for uid in changed {
            let Some(desired) = self.store.get(&uid).filter(|_| self.supervisor.has(&uid)) else { continue };
            let desired = self.resizes.granted(&desired, true);
            let (directive, resize) = (self.admission.directive(&uid), self.resizes.order(&uid));
            self.supervisor.order(&uid, Order { desired: Some(desired), directive, resize }, None);
        }
    }

    /// A manifest that was edited while no agent ran: what its old text has left goes first. That needs no apiserver.
    fn retire_revisions(&mut self, desired: &DesiredPod) {
        let mut old = self.found.iter().filter(|(uid, found)| {
            **uid != desired.uid
                && self.from_files.contains(*uid)
                && self.store.get(uid).is_none()
                && found.namespace == desired.namespace()
                && found.name == desired.name()
        });
        let old: Vec<PodUid> = old.by_ref().map(|(uid, _)| uid.clone()).collect();
        for uid in old {
            let Some(left) = self.found.remove(&uid) else { continue };
            tracing::info!(%uid, namespace = left.namespace, pod = left.name, "left by an earlier text of a manifest; taking it down");
            self.supervisor.retire(&uid, left);
        }
    }

    /// Which API object shows this pod.
    fn bind_status(&self, uid: &PodUid) {
        let Some(desired) = self.store.get(uid) else { return };
        let object = match desired.source {
            PodSource::Api => Some(desired.pod.clone()),
            PodSource::Static => self
                .store
                .mirror_of(&desired.pod)
                .filter(|m| {
                    m.metadata.annotations.as_ref().and_then(|a| a.get(CONFIG_MIRROR)).map(String::as_str)
                        == Some(uid.as_str())
                })
                .cloned(),
        };
        let target = object.as_ref().map(|pod| Target {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
        });
        self.node.reports.statuses.bind(uid, target, object.as_deref());
    }

    fn runtime_changed(&mut self, change: RuntimeChange) {
        match change {
            RuntimeChange::Pod(uid) => {
                if !self.supervisor.ring(&uid) && self.orphans_settled && self.store.get(&uid).is_none() {
                    self.observe_stray(uid);
                }
            }
            RuntimeChange::Resync => self.supervisor.ring_all(),
        }
    }

    /// Something moved in a pod that has no worker. Mostly it is the echo of its removal; but a call that timed out
    /// may have been carried out after its pod was gone. Observed beside the loop, which must not wait for the runtime.
    fn observe_stray(&self, uid: PodUid) {
        let (Some(found_stray), node) = (self.strays.clone(), self.node.clone()) else { return };
        tokio::spawn(async move {
            let hint = PodHint { namespace: "", name: "" };
            match observe_pod(&node.runtime, &uid, hint).await {
                Ok(left) if left.sandboxes.is_empty() && left.containers.is_empty() => {}
                Ok(left) => drop(found_stray.send(left).await),
                Err(e) => tracing::debug!(%uid, error = %e, "a stray pod could not be observed"),
            }
        });
    }

    fn stray(&mut self, left: ObservedPod) {
        let uid = left.uid.clone();
        if !self.supervisor.has(&uid) && self.store.get(&uid).is_none() {
            tracing::info!(%uid, namespace = left.namespace, pod = left.name, "left over from a pod that is gone; taking it down");
            self.supervisor.order(&uid, Order::vanished(), Some(left));
        }
    }

    fn ended(&mut self, uid: &PodUid) {
        self.admission.forget(uid);
        self.resizes.forget(uid);
        self.resizes_due = Some(Trigger::Removed);
        self.node.actuated.remove(uid);
        self.node.managers.release(uid);
        self.node.registry.remove(uid);
        self.node.reports.metrics.forget(uid);
        self.node.reports.statuses.forget(uid);
        if let Some(api) = &self.node.api {
            api.objects.release(uid);
            api.tokens.release(uid);
        }
        // The worker may have died, or its manifest may have come back under the same uid.
        if self.store.get(uid).is_some_and(|d| d.pod.metadata.deletion_timestamp.is_none()) {
            self.dispatch(uid);
        }
    }

    /// Once every source has reported, what nobody asked for is taken down: pods deleted while no agent ran.
    fn settle_orphans(&mut self) {
        if self.orphans_settled || !self.store.complete(self.node.api.is_some()) {
            return;
        }
        self.orphans_settled = true;
        let mut left = std::mem::take(&mut self.found);
        orphans::on_disk(&self.node, &mut left, |uid| {
            self.supervisor.has(uid) || self.store.get(uid).is_some() || self.unread.contains(uid)
        });
        let here = |uid: &PodUid| {
            self.supervisor.has(uid)
                || self.store.get(uid).is_some()
                || self.unread.contains(uid)
                || left.contains_key(uid)
        };
        self.node.managers.keep_only(here);
        self.node.allocated.keep_only(here);
        self.node.actuated.keep_only(here);
        for (uid, observed) in left {
            tracing::info!(%uid, namespace = observed.namespace, pod = observed.name, "nobody asks for this pod any more; taking it down");
            self.supervisor.order(&uid, Order::vanished(), Some(observed));
        }
    }
}

impl State {
    /// What pods request together counts for them together, against the others.
    fn set_classes(&mut self) {
        let granted = self.store.all().map(|(uid, pod)| &**self.resizes.counted(uid, pod));
        let live: Vec<_> = granted.filter(|p| !has_finished(p)).collect();
        let classes = self.node.machine.resources.classes(live.into_iter());
        if self.classes.replace(classes) == Some(classes) {
            return;
        }
        let cgroups = self.node.cgroups.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(e) = cgroups.set_classes(&classes) {
                tracing::warn!(error = %e, "the weight of burstable pods is not set");
            }
        });
    }
}
