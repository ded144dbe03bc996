//! Specs that ask for other resources than their pods were granted: which wait, in which order they are looked at, and what is
//! granted. What the core decides is kept here and in the node's file of allocations.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use keelson_core::allocation::{
    Allocation, Refused, ResizeRules, grant, pending, rank, reported_pending, requested, started,
};
use keelson_core::config::{CpuManagerPolicy, MemoryManagerPolicy};
use keelson_core::desired::{DesiredPod, PodSource};
use keelson_core::ids::PodUid;
use keelson_core::pod::ResizeOrder;
use keelson_core::status::has_finished;

use crate::node::Node;
use crate::pods::desired_store::DesiredStore;

/// What brought a wish that waited before its turn, in the words of the kubelet's metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    Added,
    Updated,
    Removed,
    Periodic,
}

pub struct Resizes {
    node: Arc<Node>,
    /// Pods that were resized while they ran, or want to be.
    pods: BTreeMap<PodUid, Standing>,
}

#[derive(Default)]
struct Standing {
    order: ResizeOrder,
    /// The spec asks for something else than was granted.
    wish: Option<Wish>,
}

struct Wish {
    pod: Arc<Pod>,
    granted: Arc<Pod>,
    /// Since when it is known to wait.
    since: Option<Timestamp>,
}

impl Standing {
    fn is_unjudged(&self) -> bool {
        let judged = self.order.pending.as_ref().map(|pending| pending.generation);
        let wished = self.wish.as_ref().map(|wish| wish.pod.metadata.generation.unwrap_or(0));
        wished.is_some() && wished != judged
    }
}

impl Resizes {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, pods: BTreeMap::new() }
    }

    /// The pod as its source has it now, with what it was granted. What runs already and is in no record was granted by whoever
    /// started it.
    pub fn granted(&mut self, desired: &DesiredPod, runs: bool) -> DesiredPod {
        let (uid, pod) = (&desired.uid, &desired.pod);
        let Some(allocation) = self.allocation(desired, runs) else { return desired.clone() };
        let mut granted = allocation.granted(pod);
        if Arc::ptr_eq(&granted, pod) || pod.metadata.deletion_timestamp.is_some() || has_finished(pod) {
            if let Some(standing) = self.pods.get_mut(uid) {
                (standing.wish, standing.order.pending) = (None, None);
            }
        } else {
            let standing = self.pods.entry(uid.clone()).or_default();
            let known = standing.wish.take();
            let before = known.as_ref().map_or(&granted, |wish| &wish.pod);
            self.node.reports.metrics.resizes.requested(&requested(before, pod));
            if known.is_none() {
                standing.order.pending = reported_pending(pod);
            }
            let since = known.and_then(|wish| wish.since);
            standing.wish = Some(Wish { pod: pod.clone(), granted: granted.clone(), since });
            if standing.is_unjudged() {
                // Whoever waits for this generation to be observed waits for what became of its resize.
                let observed = pod.status.as_ref().and_then(|s| s.observed_generation);
                Arc::make_mut(&mut granted).metadata.generation = observed;
            }
        }
        DesiredPod { pod: granted, ..desired.clone() }
    }

    fn allocation(&self, desired: &DesiredPod, runs: bool) -> Option<Arc<Allocation>> {
        let known = self.node.allocated.get(&desired.uid);
        // A manifest that is edited is another pod.
        if desired.source == PodSource::Static || known.is_some() || !runs {
            return known;
        }
        let found = Arc::new(Allocation::reported(&desired.pod));
        self.node.allocated.set(&desired.uid, &found);
        Some(found)
    }

    /// The node takes the pod as it is.
    pub fn admitted(&self, desired: &DesiredPod) {
        if self.node.allocated.get(&desired.uid).is_none() {
            self.node.allocated.set(&desired.uid, &Arc::new(Allocation::of(&desired.pod)));
        }
    }

    /// What another pod counts for when room is looked for.
    pub fn counted<'a>(&'a self, uid: &PodUid, pod: &'a Arc<Pod>) -> &'a Arc<Pod> {
        let wish = self.pods.get(uid).and_then(|standing| standing.wish.as_ref());
        wish.map_or(pod, |wish| &wish.granted)
    }

    pub fn order(&self, uid: &PodUid) -> ResizeOrder {
        self.pods.get(uid).map(|standing| standing.order.clone()).unwrap_or_default()
    }

    /// Whether nothing is decided yet about what the spec asks for now.
    pub fn is_unjudged(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(Standing::is_unjudged)
    }

    pub fn any_wish(&self) -> bool {
        self.pods.values().any(|standing| standing.wish.is_some())
    }

    pub fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.node.allocated.remove(uid);
    }

    /// Looks at all that wait, and returns those about whom something was decided.
    pub fn review(
        &mut self,
        store: &DesiredStore,
        refused: impl Fn(&PodUid) -> bool,
        trigger: Trigger,
    ) -> Vec<PodUid> {
        let wishes = self.pods.iter().filter_map(|(uid, s)| Some((uid, s.wish.as_ref()?)));
        let mut order: Vec<_> =
            wishes.map(|(uid, w)| (rank(&w.pod, &w.granted, w.since), uid.clone())).collect();
        order.sort();
        let mut changed = vec![];
        for (_, uid) in order {
            if self.decide(&uid, store, &refused, trigger) {
                changed.push(uid);
            }
        }
        changed
    }

    fn decide(
        &mut self,
        uid: &PodUid,
        store: &DesiredStore,
        refused: &impl Fn(&PodUid) -> bool,
        trigger: Trigger,
    ) -> bool {
        let Some(Wish { pod, granted, .. }) = self.pods.get(uid).and_then(|s| s.wish.as_ref()) else {
            return false;
        };
        let (pod, granted) = (pod.clone(), granted.clone());
        let others = store.all().filter(|(u, p)| *u != uid && !has_finished(p) && !refused(u));
        let others: BTreeMap<&PodUid, &Pod> = others.map(|(u, p)| (u, &**self.counted(u, p))).collect();
        let others: Vec<&Pod> = others.into_values().collect();
        let view = self.node.state.admission_view();
        let verdict = grant(&pod, &granted, &others, &view, self.rules());
        let metrics = &self.node.reports.metrics.resizes;
        let generation = pod.metadata.generation.unwrap_or(0);
        let Some(standing) = self.pods.get_mut(uid) else { return false };
        let event = match verdict {
            Ok(()) => {
                self.node.allocated.set(uid, &Arc::new(Allocation::of(&pod)));
                if standing.order.pending.is_some() {
                    metrics.accepted_late(trigger);
                }
                standing.wish = None;
                standing.order = ResizeOrder { pending: None, granted: Some(generation) };
                tracing::info!(%uid, generation, "a resize is granted");
                started(&pod, generation)
            }
            Err(why) => {
                let now = why.pending(generation);
                let before = standing.order.pending.replace(now.clone());
                if before.as_ref() == Some(&now) {
                    return false;
                }
                if let Refused::Infeasible { detail, .. } = &why {
                    metrics.infeasible(detail);
                }
                let said = before.is_some_and(|b| (b.reason, b.generation) == (now.reason, now.generation));
                if let Some(wish) = &mut standing.wish {
                    wish.since.get_or_insert_with(Timestamp::now);
                }
                if said {
                    return true;
                }
                tracing::info!(%uid, generation, reason = now.reason.word(), message = now.message, "a resize is not granted");
                pending(&pod, &now)
            }
        };
        self.node.pod_event(&pod, event.warning, event.reason, &event.message, None);
        true
    }

    fn rules(&self) -> ResizeRules<'_> {
        let config = &self.node.settings.kubelet;
        ResizeRules {
            static_cpu_manager: config.cpu_manager_policy == CpuManagerPolicy::Static,
            static_memory_manager: config.memory_manager_policy == MemoryManagerPolicy::Static,
            host: &self.node.machine.resources,
        }
    }
}

impl Trigger {
    pub fn label(self) -> &'static str {
        match self {
            Self::Added => "pods_added",
            Self::Updated => "pod_updated",
            Self::Removed => "pods_removed",
            Self::Periodic => "periodic_retry",
        }
    }
}
