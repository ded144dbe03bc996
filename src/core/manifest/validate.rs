//! The checks that keep a nonsensical manifest from becoming a half-started pod. They cover what the agent itself
//! builds paths, names and runtime calls from; what only the runtime can judge is left to it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::Problem;

pub(super) fn pod(pod: &Pod) -> Result<(), Problem> {
    match pod.metadata.name.as_deref().unwrap_or_default() {
        "" => return Err(Problem::at("metadata.name", "is missing; every pod needs a name")),
        name => subdomain("metadata.name", name)?,
    }
    if let Some(namespace) = pod.metadata.namespace.as_deref().filter(|n| !n.is_empty()) {
        label("metadata.namespace", namespace)?;
    }
    let spec = pod
        .spec
        .as_ref()
        .ok_or_else(|| Problem::at("spec", "is missing; at least one container is needed"))?;
    if spec.containers.is_empty() {
        return Err(Problem::at("spec.containers", "is empty; at least one container is needed"));
    }
    if spec.ephemeral_containers.iter().flatten().next().is_some() {
        return Err(Problem::at(
            "spec.ephemeralContainers",
            "cannot be part of a manifest; they are added to a running pod",
        ));
    }
    one_of("spec.restartPolicy", &spec.restart_policy, &["Always", "OnFailure", "Never"])?;
    one_of(
        "spec.dnsPolicy",
        &spec.dns_policy,
        &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    )?;
    if spec.termination_grace_period_seconds.is_some_and(|s| s < 0) {
        return Err(Problem::at(
            "spec.terminationGracePeriodSeconds",
            "is negative; zero or more seconds are expected",
        ));
    }
    if spec.active_deadline_seconds.is_some_and(|s| s < 1) {
        return Err(Problem::at(
            "spec.activeDeadlineSeconds",
            "is less than 1; one or more seconds are expected",
        ));
    }
    volumes(spec)?;
    containers(spec)
}

/// The name that counts is the one with the node's name behind it.
pub(super) fn final_name(pod: &Pod) -> Result<(), Problem> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    subdomain("metadata.name", name)
}

fn containers(spec: &PodSpec) -> Result<(), Problem> {
    let volumes: BTreeSet<&str> = spec.volumes.iter().flatten().map(|v| v.name.as_str()).collect();
    let init = spec.init_containers.iter().flatten().enumerate();
    let all = init
        .map(|(i, c)| (format!("spec.initContainers[{i}]"), c))
        .chain(spec.containers.iter().enumerate().map(|(i, c)| (format!("spec.containers[{i}]"), c)));
    let mut names = BTreeSet::new();
    for (at, c) in all {
        container(&at, c, &volumes)?;
        if !names.insert(c.name.as_str()) {
            return Err(Problem::at(
                format!("{at}.name"),
                format!("is {:?}, as another container of this pod is", c.name),
            ));
        }
    }
    Ok(())
}

fn container(at: &str, c: &Container, volumes: &BTreeSet<&str>) -> Result<(), Problem> {
    label(&format!("{at}.name"), &c.name)?;
    let image = c.image.as_deref().unwrap_or_default();
    if image.is_empty() || image.trim() != image {
        return Err(Problem::at(
            format!("{at}.image"),
            "is missing or has spaces around it; an image reference is expected",
        ));
    }
    one_of(&format!("{at}.imagePullPolicy"), &c.image_pull_policy, &["Always", "IfNotPresent", "Never"])?;
    one_of(&format!("{at}.restartPolicy"), &c.restart_policy, &["Always", "OnFailure", "Never"])?;
    one_of(
        &format!("{at}.terminationMessagePolicy"),
        &c.termination_message_policy,
        &["File", "FallbackToLogsOnError"],
    )?;
    for (i, port) in c.ports.iter().flatten().enumerate() {
        for (field, number) in [("containerPort", Some(port.container_port)), ("hostPort", port.host_port)] {
            let unset = field == "hostPort" && number.unwrap_or(0) == 0;
            if !unset && !number.is_some_and(|n| (1..=65535).contains(&n)) {
                return Err(Problem::at(format!("{at}.ports[{i}].{field}"), "is not a port; 1 to 65535 are"));
            }
        }
        one_of(&format!("{at}.ports[{i}].protocol"), &port.protocol, &["TCP", "UDP", "SCTP"])?;
    }
    for (i, var) in c.env.iter().flatten().enumerate() {
        if var.name.is_empty() || var.name.contains(['=', '\0']) {
            return Err(Problem::at(
                format!("{at}.env[{i}].name"),
                "is empty or contains '='; a variable's name is expected",
            ));
        }
    }
    for (i, mount) in c.volume_mounts.iter().flatten().enumerate() {
        if !volumes.contains(mount.name.as_str()) {
            return Err(Problem::at(
                format!("{at}.volumeMounts[{i}].name"),
                format!("is {:?}, but spec.volumes has no such volume", mount.name),
            ));
        }
        if mount.mount_path.is_empty() || mount.mount_path.contains(':') {
            return Err(Problem::at(
                format!("{at}.volumeMounts[{i}].mountPath"),
                "is empty or contains ':'; a path is expected",
            ));
        }
    }
    Ok(())
}

fn volumes(spec: &PodSpec) -> Result<(), Problem> {
    let mut names = BTreeSet::new();
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let at = format!("spec.volumes[{i}]");
        label(&format!("{at}.name"), &volume.name)?;
        if !names.insert(volume.name.as_str()) {
            return Err(Problem::at(
                format!("{at}.name"),
                format!("is {:?}, as another volume of this pod is", volume.name),
            ));
        }
        let sources = crate::volumes::sources(volume).len();
        if sources > 1 {
            return Err(Problem::at(at, format!("names {sources} sources; a volume has one")));
        }
        if volume.host_path.as_ref().is_some_and(|h| h.path.split('/').any(|part| part == "..")) {
            return Err(Problem::at(
                format!("{at}.hostPath.path"),
                "contains '..'; write the path without it",
            ));
        }
    }
    Ok(())
}

fn one_of(field: &str, value: &Option<String>, allowed: &[&str]) -> Result<(), Problem> {
    match value.as_deref().unwrap_or_default() {
        "" => Ok(()),
        word if allowed.contains(&word) => Ok(()),
        word => Err(Problem::at(field, format!("is {word:?}; one of {} is expected", allowed.join(", ")))),
    }
}

/// An RFC 1123 label: what container, volume and namespace names are.
fn label(field: &str, value: &str) -> Result<(), Problem> {
    if value.len() <= 63 && is_label(value) {
        return Ok(());
    }
    Err(Problem::at(
        field,
        format!("is {value:?}; up to 63 lower case letters, digits and inner '-' are expected"),
    ))
}

/// An RFC 1123 subdomain: what pod names are.
fn subdomain(field: &str, value: &str) -> Result<(), Problem> {
    if value.len() <= 253 && value.split('.').all(is_label) {
        return Ok(());
    }
    Err(Problem::at(
        field,
        format!("is {value:?}; up to 253 lower case letters, digits, and inner '-' and '.' are expected"),
    ))
}

fn is_label(value: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    value.bytes().all(|b| word(b) || b == b'-')
        && value.bytes().next().is_some_and(word)
        && value.bytes().last().is_some_and(word)
}
