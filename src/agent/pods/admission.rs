//! Keeps what the node has decided about its pods, and asks the core about new ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use keelson_core::admission::{Rejection, admit};
use keelson_core::desired::{DesiredPod, PodSource};
use keelson_core::ids::PodUid;
use keelson_core::pod::{Admitted, Directive};
use keelson_core::status::has_finished;

use crate::node::Node;

pub struct Admission {
    node: Arc<Node>,
    decided: HashMap<PodUid, Directive>,
}

/// How certain it is what the Node object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knowledge {
    /// As the watch has it: a moment behind, or not heard of yet.
    Watched,
    /// The apiserver was asked since the pod came up.
    Asked,
}

impl Admission {
    pub fn new(node: Arc<Node>) -> Self {
        Self { node, decided: HashMap::new() }
    }

    /// Decides about a pod that is new here, and keeps to it. `None`: the Node has to be asked for first.
    pub fn decide<'a>(
        &mut self,
        desired: &DesiredPod,
        all: impl Iterator<Item = (&'a PodUid, &'a Arc<Pod>)>,
        knowledge: Knowledge,
    ) -> Option<Directive> {
        let may_ask = knowledge == Knowledge::Watched && self.node.api.is_some();
        if may_ask && desired.source == PodSource::Api && !self.node.state.object().is_known() {
            return None;
        }
        let directive = match self.admit(desired, all) {
            Ok(admitted) => Directive::Run(admitted),
            Err(rejection) if may_ask && rejection.rests_on_object() => return None,
            Err(rejection) => Directive::Refuse(rejection),
        };
        self.decided.insert(desired.uid.clone(), directive.clone());
        Some(directive)
    }

    /// What was decided. What nobody was asked about already ran, and was admitted by whoever started it.
    pub fn directive(&self, uid: &PodUid) -> Directive {
        self.decided.get(uid).cloned().unwrap_or_default()
    }

    pub fn has_refused(&self, uid: &PodUid) -> bool {
        matches!(self.decided.get(uid), Some(Directive::Refuse(_)))
    }

    pub fn forget(&mut self, uid: &PodUid) {
        self.decided.remove(uid);
    }

    fn admit<'a>(
        &self,
        desired: &DesiredPod,
        all: impl Iterator<Item = (&'a PodUid, &'a Arc<Pod>)>,
    ) -> Result<Admitted, Rejection> {
        let (pod, uid) = (&desired.pod, &desired.uid);
        // A pod that is on its way out, or has ended, is not judged any more and holds nothing.
        if pod.metadata.deletion_timestamp.is_some() || has_finished(pod) {
            return Ok(Admitted::default());
        }
        let others: BTreeMap<_, _> =
            all.filter(|(u, p)| *u != uid && !has_finished(p) && !self.has_refused(u)).collect();
        let others: Vec<&Pod> = others.values().map(|p| &***p).collect();
        admit(pod, &others, &self.node.state.admission_view())?;
        self.node.managers.admit(pod, uid)?;
        Ok(Admitted::default())
    }
}
