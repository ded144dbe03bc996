//! Questions about one container: which kind it is, and whether an exit is followed by a restart.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, PodSpec};

/// What a rule may do, seen on the wire.
const RESTART: &str = "Restart";
pub(super) const RESTART_ALL: &str = "RestartAllContainers";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerKind {
    Init,
    /// An init container with restartPolicy Always: started in order, kept running, stopped last.
    Sidecar,
    Main,
    Ephemeral,
}

pub(super) fn init_kind(container: &Container) -> ContainerKind {
    if container.restart_policy.as_deref() == Some("Always") {
        ContainerKind::Sidecar
    } else {
        ContainerKind::Init
    }
}

/// Does this container run again after it exited with `exit_code`?
///
/// Rules on the container come first, then its own policy, then the pod's. An init container that succeeded is done,
/// whatever the policy says.
pub fn restarts_after(spec: &PodSpec, container: &Container, kind: ContainerKind, exit_code: i32) -> bool {
    if kind == ContainerKind::Init && exit_code == 0 {
        return false;
    }
    if kind == ContainerKind::Ephemeral {
        return false;
    }
    // An action that is not known leaves the answer to the policy.
    if rule(container, exit_code).is_some_and(|r| [RESTART, RESTART_ALL].contains(&r.action.as_str())) {
        return true;
    }
    match policy(spec, container) {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// Is the container started again after the agent has ended it for its health? Rules are for exits, so the policy alone
/// decides.
pub(super) fn restarts_when_ended(spec: &PodSpec, container: &Container) -> bool {
    policy(spec, container) != "Never"
}

fn policy<'a>(spec: &'a PodSpec, container: &'a Container) -> &'a str {
    container.restart_policy.as_deref().or(spec.restart_policy.as_deref()).unwrap_or("Always")
}

/// Do all containers of the pod run again after this one exited with `exit_code`?
pub fn restarts_all_after(container: &Container, exit_code: i32) -> bool {
    rule(container, exit_code).is_some_and(|rule| rule.action == RESTART_ALL)
}

/// The first rule of a container that answers to this exit.
fn rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.iter().flatten().find(|r| rule_matches(r, exit_code))
}

fn rule_matches(rule: &ContainerRestartRule, exit_code: i32) -> bool {
    let Some(on) = &rule.exit_codes else { return false };
    let listed = on.values.as_deref().unwrap_or_default().contains(&exit_code);
    match on.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}
