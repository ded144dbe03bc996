//! What a pod needs of a node that not every version of Kubernetes has. A node declares such features, so that the scheduler and
//! the apiserver know, and refuses pods that need others.

use k8s_openapi::api::core::v1::PodSpec;

use super::Rejection;
use crate::plan::may_restart_all;

// A pod is scheduled to any node for these two: what needs them is only an update.
const RESIZE_OF_POD: &str = "InPlacePodLevelResourcesVerticalScaling";
const RESIZE_OF_INIT_CONTAINERS: &str = "InPlacePodVerticalScalingInitContainers";
const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";
const OWN_USERS_ON_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";

/// Those that this node has, in the order of their names, as status.declaredFeatures lists them.
pub const DECLARED_FEATURES: [&str; 3] = [RESIZE_OF_POD, RESIZE_OF_INIT_CONTAINERS, RESTART_ALL];

pub(super) fn check(spec: &PodSpec) -> Result<(), Rejection> {
    let own_users = spec.host_users == Some(false);
    let needed = [
        (RESTART_ALL, may_restart_all(spec)),
        (OWN_USERS_ON_HOST_NETWORK, own_users && spec.host_network == Some(true)),
    ];
    let missing = needed.iter().filter(|(name, needed)| *needed && !DECLARED_FEATURES.contains(name));
    let missing: Vec<&str> = missing.map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("Pod requires node features that are not available: {}", missing.join(", "));
    Err(Rejection::new("PodFeatureUnsupported", message))
}
