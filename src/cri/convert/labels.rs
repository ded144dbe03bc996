//! Labels and annotations in the runtime, named as the kubelet names them, because they are the record that either agent
//! picks a pod up from.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use keelson_core::ids::PodUid;

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
pub const PORTS: &str = "io.kubernetes.container.ports";
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";

type Map = BTreeMap<String, String>;

/// The pod's own labels, with the three that identify it on top.
pub fn sandbox_labels(pod: &Pod, uid: &PodUid) -> Map {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(identity(pod, uid));
    labels
}

/// Unlike the sandbox, a container does not carry the pod's own labels.
pub fn container_labels(pod: &Pod, uid: &PodUid, container: &Container) -> Map {
    let mut labels = Map::from(identity(pod, uid));
    labels.insert(CONTAINER_NAME.into(), container.name.clone());
    labels
}

/// What is needed to stop and to report a container when the pod's object is gone.
pub fn container_annotations(pod: &Pod, container: &Container, hash: &str, restart_count: u32) -> Map {
    let mut annotations = Map::from([
        (HASH.into(), hash.to_owned()),
        (RESTART_COUNT.into(), restart_count.to_string()),
        (TERMINATION_MESSAGE_PATH.into(), container.termination_message_path.clone().unwrap_or_default()),
        (TERMINATION_MESSAGE_POLICY.into(), container.termination_message_policy.clone().unwrap_or_default()),
    ]);
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        annotations.insert(DELETION_GRACE.into(), seconds.to_string());
    }
    if let Some(seconds) = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds) {
        annotations.insert(TERMINATION_GRACE.into(), seconds.to_string());
    }
    let pre_stop = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    // API types always have a JSON form, so there is no failure to report here.
    if let Some(Ok(json)) = pre_stop.map(serde_json::to_string) {
        annotations.insert(PRE_STOP.into(), json);
    }
    let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
    if let Some(Ok(json)) = ports.map(serde_json::to_string) {
        annotations.insert(PORTS.into(), json);
    }
    annotations
}

/// What a list is narrowed by to one pod's entries.
pub fn pod_selector(uid: &PodUid) -> Map {
    Map::from([(POD_UID.into(), uid.as_str().into())])
}

fn identity(pod: &Pod, uid: &PodUid) -> [(String, String); 3] {
    [
        (POD_NAME.into(), pod.metadata.name.clone().unwrap_or_default()),
        (POD_NAMESPACE.into(), pod.metadata.namespace.clone().unwrap_or_default()),
        (POD_UID.into(), uid.as_str().into()),
    ]
}
