//! The statuses of a pod's containers: by name, but init containers in the order that they run in.

use k8s_openapi::api::core::v1::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus, VolumeMountStatus,
};

use super::ended::{UNKNOWN, unknown_end};
use super::restarting::wait_for_all;
use super::{Derivation, ephemeral, resources, second};
use crate::observed::{ContainerState, ObservedContainer};
use crate::plan::{ContainerKind, restarts_after};
use crate::pod::VolumesState;
use crate::resources::is_sidecar;
use crate::volumes::recursive_read_only;

/// All termination messages of a pod together, so that a status stays small enough for the API.
const MAX_MESSAGES: usize = 12 * 1024;

pub(super) fn fill(d: &Derivation<'_>, status: &mut PodStatus) {
    let old = &d.state.previous_status;
    let all = |containers: Vec<(ContainerKind, &Container)>, old: &Option<Vec<ContainerStatus>>| {
        let find = |name: &str| old.iter().flatten().find(|s| s.name == name);
        let mut list: Vec<_> = containers.iter().map(|(kind, c)| one(d, c, *kind, find(&c.name))).collect();
        if containers.first().is_some_and(|(kind, _)| !runs_in_order(*kind)) {
            list.sort_by(|a, b| a.name.cmp(&b.name));
        }
        (!list.is_empty()).then_some(list)
    };
    let inits = d.spec.init_containers.iter().flatten();
    let inits = inits
        .map(|c| (if is_sidecar(c) { ContainerKind::Sidecar } else { ContainerKind::Init }, c))
        .collect();
    let mains = d.spec.containers.iter().map(|c| (ContainerKind::Main, c)).collect();
    let guests: Vec<_> = d.spec.ephemeral_containers.iter().flatten().map(ephemeral::as_container).collect();
    let guests = guests.iter().map(|c| (ContainerKind::Ephemeral, c)).collect();

    status.init_container_statuses = all(inits, &old.init_container_statuses);
    status.container_statuses = all(mains, &old.container_statuses);
    status.ephemeral_container_statuses = all(guests, &old.ephemeral_container_statuses);
}

fn runs_in_order(kind: ContainerKind) -> bool {
    matches!(kind, ContainerKind::Init | ContainerKind::Sidecar)
}

fn one(
    d: &Derivation<'_>,
    container: &Container,
    kind: ContainerKind,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let mut instances: Vec<_> = d.observed.containers.iter().filter(|c| c.name == container.name).collect();
    instances.sort_by_key(|c| std::cmp::Reverse((c.attempt, c.created_at)));
    let newest = instances.first().copied();

    let mut status = match newest {
        Some(newest) => old
            .and_then(|old| ended_before(d, newest, old))
            .unwrap_or_else(|| instance(d, container, newest, instances.get(1).copied(), old)),
        None => forgotten(d, container, kind, old),
    };
    // The API lets nothing run again that was once shown as ended for good: what was ended for a restart waits for it.
    let ordered = newest.is_some_and(|c| d.state.restart_ordered(&c.id).is_some());
    let why = d.waiting(&container.name).map(|w| (w.reason.as_str(), w.message.as_str()));
    if restarts(d, container, kind, newest, &status)
        && let Some((reason, message)) = why.or(ordered.then(|| (d.default_reason(), "")))
    {
        if let Some(ended) = status.state.as_ref().and_then(|s| s.terminated.clone()) {
            status.last_state = Some(terminated(ended));
        }
        status.state = Some(waiting(reason, message));
    }
    if !d.is_going() {
        wait_for_all(d, container, newest, &mut status);
    }
    explain_default(d, &mut status);
    judge(d, container, kind, newest, old, &mut status);
    status.volume_mounts = volume_mounts(d, container);
    cut_messages(d, &mut status);
    status
}

/// The runtime shows an instance as alive that was seen ending: an old picture, or a state nobody can read. An end that
/// was only inferred gives way to one that is seen running.
fn ended_before(
    d: &Derivation<'_>,
    newest: &ObservedContainer,
    old: &ContainerStatus,
) -> Option<ContainerStatus> {
    let id = id(d, newest);
    let of = |state: &Option<ApiState>| {
        let end = state.as_ref()?.terminated.as_ref()?;
        let certain = newest.state == ContainerState::Unknown || end.reason.as_deref() != Some(UNKNOWN);
        (certain && end.container_id.as_ref() == Some(&id)).then(|| state.clone())
    };
    if newest.state == ContainerState::Exited {
        return None;
    }
    if of(&old.state).is_some() {
        return Some(old.clone());
    }
    of(&old.last_state).map(|state| ContainerStatus { state, last_state: None, ..old.clone() })
}

fn instance(
    d: &Derivation<'_>,
    container: &Container,
    newest: &ObservedContainer,
    before: Option<&ObservedContainer>,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let id = id(d, newest);
    let attempt = i32::try_from(newest.attempt).unwrap_or(i32::MAX);
    let old_state = old.and_then(|o| o.state.as_ref());
    let old_ended = old_state.and_then(|s| s.terminated.as_ref());
    let old_last = old.and_then(|o| o.last_state.as_ref()).and_then(|s| s.terminated.as_ref());
    let remembered: Vec<_> = [old_ended, old_last].into_iter().flatten().collect();

    let replaced = old_ended.filter(|t| t.container_id.as_ref() != Some(&id));
    let known = old.map_or(0, |o| o.restart_count);
    // A new instance is one restart more, also where the runtime lost count.
    let lost_count = newest.state == ContainerState::Running && replaced.is_some() && known >= attempt;
    let restart_count = if lost_count { known.saturating_add(1) } else { attempt.max(known) };
    let last = match before.filter(|b| b.state == ContainerState::Exited) {
        Some(before) => Some(end_of(d, before, &remembered)),
        None => replaced.or(old_last.filter(|t| t.container_id.as_ref() != Some(&id))).cloned(),
    };
    let state = match newest.state {
        ContainerState::Running => ApiState {
            running: Some(ContainerStateRunning { started_at: newest.started_at.map(second) }),
            ..Default::default()
        },
        ContainerState::Exited => terminated(end_of(d, newest, &remembered)),
        // It ran and is not known to run: "never ran" would let a pod that runs once run twice.
        ContainerState::Unknown if old_state.is_some_and(|s| s.running.is_some()) => {
            let mut end = unknown_end("The container could not be located when the pod was terminated");
            end.container_id = Some(id.clone());
            terminated(end)
        }
        ContainerState::Created | ContainerState::Unknown => waiting(d.default_reason(), ""),
    };
    let wanted = container.image.clone().unwrap_or_default();
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: if newest.image.is_empty() { wanted } else { newest.image.clone() },
        image_id: newest.image_id.clone(),
        container_id: Some(id),
        restart_count,
        state: Some(state),
        last_state: last.map(terminated),
        user: newest.user.as_ref().map(|user| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: Some(user.supplemental_groups.clone()).filter(|g| !g.is_empty()),
            }),
        }),
        ..Default::default()
    };
    resources::fill(&mut status, container, newest, d.state.actuated.as_deref());
    status
}

/// The runtime knows nothing of this container: either its turn has not come, or it was removed.
fn forgotten(
    d: &Derivation<'_>,
    container: &Container,
    kind: ContainerKind,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let old_state = old.and_then(|o| o.state.as_ref());
    let old_end = old_state.and_then(|s| s.terminated.as_ref());
    let main = |name: &str| d.spec.containers.iter().any(|c| c.name == name);
    // Main containers only exist after every init container ended well.
    let inferred = kind == ContainerKind::Init
        && old_end.is_none_or(|end| end.exit_code != 0)
        && d.observed.containers.iter().any(|c| main(&c.name));
    if let (Some(old), Some(_), false) = (old, old_end, inferred) {
        return old.clone();
    }
    let mut status = old.cloned().unwrap_or_else(|| ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        ..Default::default()
    });
    if inferred {
        status.state = Some(terminated(ContainerStateTerminated {
            reason: Some("Completed".into()),
            message: Some("Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally".into()),
            ..Default::default()
        }));
        return status;
    }
    status.state = Some(waiting(d.default_reason(), ""));
    if old_state.is_some_and(|s| s.running.is_some()) {
        // It ran and is gone. As the last state this keeps the pod from looking as if it had never started. Without its
        // id: should the runtime find it again, it runs again.
        let end = unknown_end(
            "The container could not be located when the pod was deleted.  The container used to be Running",
        );
        status.last_state = Some(terminated(end));
        status.restart_count += i32::from(!d.is_going());
    }
    status
}

/// Whether the container is to be started (again): only then it waits for something.
fn restarts(
    d: &Derivation<'_>,
    container: &Container,
    kind: ContainerKind,
    newest: Option<&ObservedContainer>,
    status: &ContainerStatus,
) -> bool {
    if d.is_going() || newest.is_some_and(|c| c.state == ContainerState::Running) {
        return false;
    }
    match status.state.as_ref().and_then(|s| s.terminated.as_ref()) {
        None => true,
        Some(end) => match newest.filter(|c| end.container_id.as_ref() == Some(&id(d, c))) {
            Some(ended) => d.state.restarts(d.spec, container, kind, ended),
            None => restarts_after(d.spec, container, kind, end.exit_code),
        },
    }
}

/// A container that merely waits for its turn says what the pod waits for.
fn explain_default(d: &Derivation<'_>, status: &mut ContainerStatus) {
    let Some(waiting) = status.state.as_mut().and_then(|s| s.waiting.as_mut()) else { return };
    if waiting.message.is_some() || waiting.reason.as_deref() != Some(d.default_reason()) {
        return;
    }
    waiting.message = match (&d.state.volumes.state, &d.state.sandbox.failure) {
        _ if d.is_going() => None,
        (VolumesState::Failed(why), _) => Some(why.clone()),
        (_, Some(failure)) => Some(failure.message.clone()),
        _ => None,
    };
    waiting.message.take_if(|m| m.is_empty());
}

/// Started and ready. Until the probes of this agent have a result, what was known of the same instance holds.
fn judge(
    d: &Derivation<'_>,
    container: &Container,
    kind: ContainerKind,
    newest: Option<&ObservedContainer>,
    old: Option<&ContainerStatus>,
    status: &mut ContainerStatus,
) {
    let state = status.state.clone().unwrap_or_default();
    let old = old.filter(|o| o.container_id.is_some() && o.container_id == status.container_id);
    let live = newest.filter(|c| state.running.is_some() && !d.state.hook_running(&c.id));
    let verdict = live.and_then(|c| d.facts.probes.get(&c.id));
    let started = live.is_some()
        && match verdict {
            Some(verdict) => verdict.started,
            None => container.startup_probe.is_none() || old.is_some_and(|o| o.started == Some(true)),
        };
    let ready = started
        && match verdict {
            Some(verdict) => verdict.ready,
            None => container.readiness_probe.is_none() || old.is_some_and(|o| o.ready),
        };
    (status.started, status.ready) = match kind {
        ContainerKind::Main | ContainerKind::Sidecar => (Some(started), ready),
        ContainerKind::Init => (Some(started), state.terminated.is_some_and(|t| t.exit_code == 0)),
        ContainerKind::Ephemeral => (None, false),
    };
}

fn end_of(
    d: &Derivation<'_>,
    instance: &ObservedContainer,
    remembered: &[&ContainerStateTerminated],
) -> ContainerStateTerminated {
    let id = id(d, instance);
    let default_reason = if instance.exit_code == 0 { "Completed" } else { "Error" };
    let reason = if instance.reason.is_empty() { default_reason } else { instance.reason.as_str() };
    let words = d.state.termination_message(&instance.id).unwrap_or_default();
    let message =
        [instance.message.as_str(), words].into_iter().filter(|m| !m.is_empty()).collect::<Vec<_>>();
    // The file with the message may be gone by now; what was read once stays.
    let known = remembered.iter().find(|t| t.container_id.as_ref() == Some(&id));
    let message = match message.is_empty() {
        true => known.and_then(|t| t.message.clone()),
        false => Some(message.join(": ")),
    };
    ContainerStateTerminated {
        container_id: Some(id),
        exit_code: instance.exit_code,
        reason: Some(reason.to_owned()),
        message,
        started_at: instance.started_at.map(second),
        finished_at: instance.finished_at.map(second),
        signal: None,
    }
}

fn volume_mounts(d: &Derivation<'_>, container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.iter().flatten();
    let list: Vec<_> = mounts
        .map(|mount| {
            let read_only = mount.read_only == Some(true);
            let recursive = recursive_read_only(mount, d.facts.recursive_read_only).unwrap_or(false);
            let word = if recursive { "Enabled" } else { "Disabled" };
            VolumeMountStatus {
                name: mount.name.clone(),
                mount_path: mount.mount_path.clone(),
                read_only: read_only.then_some(true),
                recursive_read_only: read_only.then(|| word.to_owned()),
                volume_status: None,
            }
        })
        .collect();
    (!list.is_empty()).then_some(list)
}

fn cut_messages(d: &Derivation<'_>, status: &mut ContainerStatus) {
    let count = |list: Option<usize>| list.unwrap_or(0);
    let containers = d.spec.containers.len()
        + count(d.spec.init_containers.as_ref().map(Vec::len))
        + count(d.spec.ephemeral_containers.as_ref().map(Vec::len));
    let limit = MAX_MESSAGES / containers.max(1);
    let states = [&mut status.state, &mut status.last_state].into_iter().flatten();
    for message in states.filter_map(|s| s.terminated.as_mut()).filter_map(|t| t.message.as_mut()) {
        let end = (0..=limit.min(message.len())).rev().find(|at| message.is_char_boundary(*at));
        message.truncate(end.unwrap_or(0));
    }
}

impl Derivation<'_> {
    pub(super) fn default_reason(&self) -> &'static str {
        let has_init = self.spec.init_containers.as_ref().is_some_and(|c| !c.is_empty());
        if has_init { "PodInitializing" } else { "ContainerCreating" }
    }

    /// Nothing of this pod is started any more.
    fn is_going(&self) -> bool {
        !self.state.lifecycle.is_syncing() || self.desired.pod.metadata.deletion_timestamp.is_some()
    }
}

fn id(d: &Derivation<'_>, instance: &ObservedContainer) -> String {
    format!("{}://{}", d.facts.runtime_name, instance.id)
}

fn waiting(reason: &str, message: &str) -> ApiState {
    let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
    ApiState {
        waiting: Some(ContainerStateWaiting { reason: text(reason), message: text(message) }),
        ..Default::default()
    }
}

fn terminated(end: ContainerStateTerminated) -> ApiState {
    ApiState { terminated: Some(end), ..Default::default() }
}
