//! What the pod loop writes into the timelines of pods: that they were seen, judged, shown by the apiserver.

use keelson_core::desired::{DesiredPod, PodSource};
use keelson_core::ids::PodUid;
use keelson_core::pod::Directive;
use keelson_core::timeline::{Beginning, Place, Step, Wait};

use crate::node::Node;
use crate::registry::timelines::Recorder;

/// A pod came from its source, for the first time or again. `found`: the runtime holds something of it.
pub(super) fn seen(node: &Node, desired: &DesiredPod, found: bool) -> Recorder {
    let timelines = node.registry.timelines();
    let recorder = timelines.of(&desired.uid, |began| Beginning::desired(desired, found, began));
    if desired.source == PodSource::Api
        && let Some(latency) = recorder.record(|timeline, now| timeline.shown(&desired.pod, now))
    {
        node.reports.metrics.starts.pod_shown(latency);
    }
    recorder
}

/// Whether the node takes the pod is decided.
pub(super) fn judged(recorder: &Recorder, directive: &Directive) {
    recorder.record(|timeline, now| match directive {
        Directive::Refuse(refusal) => {
            let cause = format!("{}: {}", refusal.reason, refusal.message);
            timeline.admitted(Err(&cause), now);
        }
        Directive::Run(_) | Directive::Evict(_) => timeline.admitted(Ok(()), now),
    });
}

/// It cannot be decided before the Node object was read.
pub(super) fn waits_for_node(recorder: &Recorder) {
    let wait = Wait::pod(
        "waits for the apiserver to say which labels and taints this node has",
        "it is admitted or refused when the Node object was read",
    );
    recorder.record(|timeline, _| {
        timeline.moved(Step::Admitted, None, Place::Apiserver);
        timeline.rests(vec![wait]);
    });
}

/// Another pod with its name, of an earlier text of the manifest, goes first.
pub(super) fn waits_for_predecessor(node: &Node, uid: &PodUid) {
    let wait = Wait::pod(
        "waits for the pod of the manifest's earlier text to stop",
        "it is started when nothing of that one runs any more",
    );
    if let Some(recorder) = node.registry.timelines().get(uid) {
        recorder.record(|timeline, _| timeline.rests(vec![wait]));
    }
}
