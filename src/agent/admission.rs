//! Keeps what the node has decided about pods it will not run, and asks the core about new ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use keelson_core::admission::{NodeView, Rejection, admit};
use keelson_core::desired::DesiredPod;
use keelson_core::ids::PodUid;
use tokio::sync::watch;

pub struct Admission {
    node: watch::Receiver<NodeView>,
    refused: HashMap<PodUid, (String, String)>,
}

impl Admission {
    pub fn new(node: watch::Receiver<NodeView>) -> Self {
        Self { node, refused: HashMap::new() }
    }

    pub fn admit<'a>(
        &self,
        desired: &DesiredPod,
        all: impl Iterator<Item = (&'a PodUid, &'a Arc<Pod>)>,
    ) -> Result<(), Rejection> {
        let (pod, uid) = (&desired.pod, &desired.uid);
        // A pod that is on its way out, or has ended, is not judged any more and holds nothing.
        if pod.metadata.deletion_timestamp.is_some() || ended(pod) {
            return Ok(());
        }
        let others: BTreeMap<_, _> =
            all.filter(|(u, p)| *u != uid && !ended(p) && !self.refused.contains_key(u)).collect();
        let others: Vec<&Pod> = others.values().map(|p| &***p).collect();
        admit(pod, &others, &self.node.borrow())
    }

    pub fn verdict(&self, uid: &PodUid) -> Option<(String, String)> {
        self.refused.get(uid).cloned()
    }

    pub fn remember(&mut self, uid: &PodUid, verdict: (String, String)) {
        self.refused.insert(uid.clone(), verdict);
    }

    pub fn forget(&mut self, uid: &PodUid) {
        self.refused.remove(uid);
    }
}

fn ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
