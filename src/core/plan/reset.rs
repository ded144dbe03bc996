//! The restart of all containers in place, which a rule of one of them asks for when that one exits: all end and are removed,
//! and the pod starts over from its first init container, with the sandbox and the volumes that it has.
//!
//! Whoever asked for it is removed last. As long as it is there the restart is not done, so that an agent that dies meanwhile
//! goes on with it.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::container::{RESTART_ALL, restarts_all_after};
use super::containers::{ContainerPass, kill};
use super::{Action, Kill};
use crate::observed::{ContainerState, ObservedContainer, ObservedPod};
use crate::pod::PodState;

/// Those whose exit asks for the restart of all. One that the agent itself has ended asks for nothing.
pub(crate) fn askers<'a>(
    spec: &PodSpec,
    state: &PodState,
    observed: &'a ObservedPod,
) -> Vec<&'a ObservedContainer> {
    let asks = |c: &Container| {
        let newest = observed.latest(&c.name)?;
        let ended = newest.state == ContainerState::Exited && state.restart_ordered(&newest.id).is_none();
        (ended && restarts_all_after(c, newest.exit_code)).then_some(newest)
    };
    containers(spec).filter_map(asks).collect()
}

/// Whether any container of the pod can ask for it.
pub(crate) fn may_restart_all(spec: &PodSpec) -> bool {
    let rules = containers(spec).flat_map(|c| c.restart_policy_rules.iter().flatten());
    rules.into_iter().any(|rule| rule.action == RESTART_ALL)
}

/// Nothing where nobody asks for it. No back-off is served, however often it is asked for, and none grows by it.
pub(super) fn plan(pass: &ContainerPass<'_>) -> Option<Vec<Action>> {
    let askers = askers(pass.spec, pass.state, pass.observed);
    if askers.is_empty() {
        return None;
    }
    let own = |c: &&ObservedContainer| containers(pass.spec).any(|wanted| wanted.name == c.name);
    let alive = |c: &&ObservedContainer| matches!(c.state, ContainerState::Running | ContainerState::Unknown);
    let kills: Vec<Kill> = pass
        .observed
        .containers
        .iter()
        .filter(own)
        .filter(alive)
        .map(|c| {
            let message = format!("Container {} is stopped because all containers restart", c.name);
            // What the rule answers to has happened already: there is nothing to be gained by time.
            Kill { grace_seconds: 0, ..kill(c, pass.spec, message) }
        })
        .collect();
    if !kills.is_empty() {
        return Some(vec![Action::KillContainers(kills)]);
    }
    let asks = |c: &ObservedContainer| askers.iter().any(|asker| asker.id == c.id);
    let mut gone: Vec<&ObservedContainer> = pass.observed.containers.iter().filter(own).collect();
    gone.sort_by_key(|c| asks(c));
    let newest = |c: &ObservedContainer| pass.observed.latest(&c.name).is_some_and(|n| n.id == c.id);
    let remove = |c: &ObservedContainer| match newest(c) && c.state == ContainerState::Exited {
        true => Action::ResetContainer { id: c.id.clone() },
        false => Action::RemoveContainer { id: c.id.clone() },
    };
    Some(gone.into_iter().map(remove).collect())
}

/// Guests are not part of it.
fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}
