//! The phase: one word for where a pod is in its life.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};

use super::restarting::RESTARTING_ALL;
use super::{Derivation, may_be_running};
use crate::observed::{ContainerState, ObservedContainer};
use crate::plan::{ContainerKind, restarts_after};
use crate::resources::is_sidecar;

pub(super) fn of(d: &Derivation<'_>, status: &PodStatus) -> &'static str {
    let find = |list: &Option<Vec<ContainerStatus>>, name: &str| -> How {
        list.iter().flatten().find(|s| s.name == name).map_or(How::Unknown, how)
    };
    let restarts = |container: &Container, kind: ContainerKind, code: i32| {
        // What exists and never ran is about to be started.
        let created = |c: &ObservedContainer| c.state == ContainerState::Created;
        d.observed.latest(&container.name).is_some_and(created)
            || d.state.restart_is_due(&container.name, d.observed)
            || restarts_after(d.spec, container, kind, code)
    };
    let mut pending = false;
    let mut unfinished_sidecar = false;
    let (mut running, mut waiting, mut unknown) = (0, 0, 0);

    for container in d.spec.init_containers.iter().flatten() {
        let state = find(&status.init_container_statuses, &container.name);
        match (is_sidecar(container), state) {
            (false, How::Ended(0) | How::BetweenRuns(0) | How::Restarting) => {}
            (false, How::Ended(code) | How::BetweenRuns(code)) => {
                // One that ends after the main containers have begun is left over; nothing was waiting for it.
                if !restarts(container, ContainerKind::Init, code) && !main_container_exists(d) {
                    return "Failed";
                }
            }
            (false, _) => pending = true,
            (true, How::Running { started }) => {
                running += 1;
                unfinished_sidecar |= !started;
            }
            // A sidecar that ended says nothing about the pod.
            (true, How::Ended(_) | How::BetweenRuns(_) | How::Restarting) => {}
            (true, How::NeverRan) => {
                unfinished_sidecar = true;
                waiting += 1;
            }
            (true, How::Unknown) => unknown += 1,
        }
    }

    let (mut stopped, mut for_good, mut succeeded) = (0, 0, 0);
    for container in &d.spec.containers {
        match find(&status.container_statuses, &container.name) {
            How::Running { .. } => running += 1,
            How::Ended(code) => {
                stopped += 1;
                succeeded += i32::from(code == 0);
                for_good += i32::from(!restarts(container, ContainerKind::Main, code));
            }
            How::BetweenRuns(code) => {
                stopped += 1;
                for_good += i32::from(!restarts(container, ContainerKind::Main, code));
            }
            How::Restarting => stopped += 1,
            How::NeverRan => waiting += 1,
            How::Unknown => unknown += 1,
        }
    }

    // Main containers only start after all init containers: a restarting sidecar does not undo that.
    let unfinished_sidecar = unfinished_sidecar && !main_container_exists(d);
    if pending || unfinished_sidecar || waiting > 0 || unknown > 0 {
        return "Pending";
    }
    if running > 0 {
        return "Running";
    }
    if stopped == 0 {
        return "Pending";
    }
    // Nothing is restarted any more once the pod goes away.
    let over = !d.state.lifecycle.is_syncing() && !may_be_running(d) && !d.is_static();
    if !over && stopped != for_good {
        return "Running";
    }
    if stopped == succeeded { "Succeeded" } else { "Failed" }
}

#[derive(Clone, Copy)]
enum How {
    Running {
        started: bool,
    },
    Ended(i32),
    /// It ended and waits to be started again.
    BetweenRuns(i32),
    /// It ended because all containers restart, so how it ended says nothing.
    Restarting,
    NeverRan,
    Unknown,
}

fn how(status: &ContainerStatus) -> How {
    let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    match &status.state {
        Some(state) if state.running.is_some() => How::Running { started: status.started == Some(true) },
        Some(state) if state.terminated.is_some() => {
            How::Ended(state.terminated.as_ref().map_or(0, |t| t.exit_code))
        }
        Some(state) if state.waiting.is_some() => match last {
            Some(end) if end.reason.as_deref() == Some(RESTARTING_ALL) => How::Restarting,
            Some(end) => How::BetweenRuns(end.exit_code),
            None => How::NeverRan,
        },
        _ => How::Unknown,
    }
}

/// Whether a main container was created in the sandbox that is current.
fn main_container_exists(d: &Derivation<'_>) -> bool {
    let Some(sandbox) = d.observed.latest_sandbox() else { return false };
    let is_main = |name: &str| d.spec.containers.iter().any(|c| c.name == name);
    d.observed.containers.iter().any(|c| c.sandbox_id == sandbox.id && is_main(&c.name))
}
