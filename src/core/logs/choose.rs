//! Which instance of a container somebody means who asks for its log.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus};

use crate::ids::ContainerId;

/// The instance whose log is to be shown, or why there is none, in the kubelet's words: kubectl shows them to people.
pub fn choose(pod: &str, status: &PodStatus, container: &str, previous: bool) -> Result<ContainerId, String> {
    let of = format!("container {container:?} in pod {pod:?}");
    let all =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let mut all = all.into_iter().flatten().flatten();
    let Some(status) = all.find(|s| s.name == container) else {
        return Err(format!("{of} is not available"));
    };
    let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    let id = if previous {
        last.and_then(id_of)
            .ok_or_else(|| format!("previous terminated container {container:?} in pod {pod:?} not found"))?
    } else {
        current(status, last).ok_or_else(|| format!("{of} {}", absence(status, last)))?
    };
    let bare = id.split_once("://").map_or(id, |(_, bare)| bare);
    ContainerId::try_from(bare).map_err(|_| format!("{of} is not available"))
}

fn current<'a>(status: &'a ContainerStatus, last: Option<&'a ContainerStateTerminated>) -> Option<&'a str> {
    match status.state.as_ref() {
        Some(ContainerState { running: Some(_), .. }) => status.container_id.as_deref(),
        // The instance that should have followed may never have started.
        Some(ContainerState { terminated: Some(ended), .. }) => id_of(ended).or(last.and_then(id_of)),
        _ => last.and_then(id_of),
    }
}

fn id_of(ended: &ContainerStateTerminated) -> Option<&str> {
    ended.container_id.as_deref().filter(|id| !id.is_empty())
}

fn absence(status: &ContainerStatus, last: Option<&ContainerStateTerminated>) -> String {
    let state = status.state.as_ref();
    let ended = state.is_some_and(|s| s.terminated.is_some()) || last.is_some();
    match state.and_then(|s| s.waiting.as_ref()) {
        _ if ended => "is terminated".into(),
        Some(waiting) => match waiting.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => "is waiting to start: image can't be pulled".into(),
            "ImagePullBackOff" => "is waiting to start: trying and failing to pull image".into(),
            reason => format!("is waiting to start: {reason}"),
        },
        None => "is waiting to start - no logs yet".into(),
    }
}
