//! Whether a container that ended is to be started again.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};

/// The container's own rules first, then its own policy, then the pod's, which is Always unless told otherwise.
pub fn should_restart(container: &Container, spec: &PodSpec, exit_code: i32) -> bool {
    if let Some(own) = container.restart_policy.as_deref() {
        let rule = container.restart_policy_rules.iter().flatten().find(|rule| {
            rule.exit_codes.as_ref().is_some_and(|codes| {
                let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
                match codes.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    _ => false,
                }
            })
        });
        if rule.is_some_and(|rule| matches!(rule.action.as_str(), "Restart" | "RestartAllContainers")) {
            return true;
        }
        if let Some(answer) = by_policy(own, exit_code) {
            return answer;
        }
    }
    by_policy(spec.restart_policy.as_deref().unwrap_or("Always"), exit_code).unwrap_or(true)
}

fn by_policy(policy: &str, exit_code: i32) -> Option<bool> {
    match policy {
        "Always" => Some(true),
        "OnFailure" => Some(exit_code != 0),
        "Never" => Some(false),
        _ => None,
    }
}

/// An ephemeral container seen as any other. It never restarts.
pub fn ephemeral_as_container(e: &EphemeralContainer) -> Container {
    let e = e.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle,
        liveness_probe: e.liveness_probe,
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe,
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: Some("Never".into()),
        restart_policy_rules: None,
        security_context: e.security_context,
        startup_probe: e.startup_probe,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}
