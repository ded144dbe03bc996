//! What the volumes of all pods hold, as their kinds measure it.

use std::collections::HashMap;
use std::time::Duration;

use keelson_core::ids::PodUid;
use keelson_core::stats::report::Report;
use keelson_volumes::VolumeStats;

use crate::node::Node;

/// By the pod's uid.
pub(super) async fn of_pods(node: &Node, report: &Report) -> HashMap<String, Vec<VolumeStats>> {
    let lasts = node.settings.kubelet.volume_stats_agg_period.get().max(Duration::from_secs(1));
    let measure = node.volumes.measure(&node.settings.paths.root_dir, lasts);
    let mut found = HashMap::new();
    for pod in &report.pods {
        let Ok(uid) = PodUid::try_from(pod.uid.as_str()) else { continue };
        found.insert(pod.uid.clone(), node.volumes.stats(&node.dirs.pod(&uid), &measure).await);
    }
    node.volumes.forget_old_sizes();
    found
}
