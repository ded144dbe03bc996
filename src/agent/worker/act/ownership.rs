//! Tells how far a volume's files were given to the pod's fsGroup: in the timeline at once, in an event when it takes long.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use keelson_core::timeline::{Note, Step};
use keelson_core::volumes::WalkReports;
use keelson_volumes::Progress;

use crate::node::Node;
use crate::registry::timelines::Recorder;

pub(super) struct OwnershipProgress {
    pub node: Arc<Node>,
    pub pod: Arc<Pod>,
    pub recorder: Recorder,
    /// Volumes are gone through one after the other; these are of the one whose walk has taken so long by now.
    reports: Mutex<(Duration, WalkReports)>,
}

impl OwnershipProgress {
    pub fn new(node: Arc<Node>, pod: Arc<Pod>, recorder: Recorder) -> Self {
        Self { node, pod, recorder, reports: Mutex::default() }
    }
}

impl Progress for OwnershipProgress {
    fn owned(&self, path: &Path, entries: u64, took: Duration) {
        self.recorder.record(|timeline, _| timeline.note(Step::Volumes, None, Note::Owned { entries }));
        let pods = self.node.dirs.pods();
        let shown = path.strip_prefix(&pods).unwrap_or(path).to_string_lossy();
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        if took < reports.0 {
            // Another volume.
            reports.1 = WalkReports::default();
        }
        reports.0 = took;
        if let Some(event) = reports.1.due(took, &shown, entries) {
            self.node.pod_event(&self.pod, event.warning, event.reason, &event.message, None);
        }
    }
}
