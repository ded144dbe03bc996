//! The final status of a pod of which no process is left.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus};

use super::Derivation;
use crate::resources::is_sidecar;

pub(super) const UNKNOWN: &str = "ContainerStatusUnknown";
/// What a shell reports for SIGKILL; an error in any case, because nobody knows that it went well.
pub(super) const UNKNOWN_CODE: i32 = 137;

/// Containers that should have run, and of which nothing is known, count as failed. Those whose turn never came stay
/// as they are.
pub(super) fn mark_unfinished(d: &Derivation<'_>, status: &mut PodStatus) {
    if initialized(d, status) {
        status.container_statuses.iter_mut().flatten().for_each(end);
    }
    let inits = status.init_container_statuses.as_deref_mut().unwrap_or_default();
    let attempted = inits.iter().rposition(was_attempted).map_or(1, |last| last + 1);
    inits.iter_mut().take(attempted).for_each(end);
}

pub(super) fn unknown_end(message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: UNKNOWN_CODE,
        reason: Some(UNKNOWN.into()),
        message: Some(message.into()),
        ..Default::default()
    }
}

fn end(status: &mut ContainerStatus) {
    if is_ended(status) {
        return;
    }
    let mut terminated = unknown_end("The container could not be located when the pod was terminated");
    terminated.container_id = status.container_id.clone();
    status.state = Some(ContainerState { terminated: Some(terminated), ..Default::default() });
    status.ready = false;
    status.started = Some(false);
}

fn is_ended(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.terminated.is_some())
}

fn was_attempted(status: &ContainerStatus) -> bool {
    let waiting = status.state.as_ref().is_some_and(|s| s.waiting.is_some());
    !waiting || status.last_state.as_ref().is_some_and(|s| s.terminated.is_some())
}

fn initialized(d: &Derivation<'_>, status: &PodStatus) -> bool {
    let Some(last) = d.spec.init_containers.iter().flatten().last() else { return true };
    if status.container_statuses.iter().flatten().any(was_attempted) {
        return true;
    }
    let Some(last_status) = status.init_container_statuses.iter().flatten().last() else { return false };
    if is_sidecar(last) {
        return last_status.started == Some(true);
    }
    let ended_well = |s: &ContainerState| s.terminated.as_ref().is_some_and(|t| t.exit_code == 0);
    [&last_status.state, &last_status.last_state].into_iter().flatten().any(ended_well)
}
