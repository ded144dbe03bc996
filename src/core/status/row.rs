//! A status as one row of `keelson pods`.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use crate::desired::{DesiredPod, PodSource};
use crate::resources::is_sidecar;
use crate::view::PodRow;

pub fn view_row(desired: &DesiredPod, status: &PodStatus) -> PodRow {
    let spec = desired.pod.spec.as_ref();
    let sidecars: Vec<&str> = spec
        .iter()
        .flat_map(|s| s.init_containers.iter().flatten())
        .filter(|c| is_sidecar(c))
        .map(|c| c.name.as_str())
        .collect();
    let inits = status.init_container_statuses.as_deref().unwrap_or_default();
    let mains = status.container_statuses.as_deref().unwrap_or_default();
    // What stays: the main containers and the sidecars beside them.
    let staying: Vec<_> = inits.iter().filter(|s| sidecars.contains(&s.name.as_str())).chain(mains).collect();
    let is_true =
        |kind: &str| status.conditions.iter().flatten().any(|c| c.type_ == kind && c.status == "True");
    let restarts = match is_true("Initialized") {
        true => staying.iter().map(|s| s.restart_count).sum(),
        false => inits.iter().map(|s| s.restart_count).sum(),
    };
    let created = desired.pod.metadata.creation_timestamp.as_ref().or(status.start_time.as_ref());
    PodRow {
        uid: desired.uid.to_string(),
        namespace: desired.namespace().to_owned(),
        name: desired.name().to_owned(),
        source: match desired.source {
            PodSource::Api => "api",
            PodSource::Static => "file",
        }
        .to_owned(),
        phase: status.phase.clone().unwrap_or_else(|| "Pending".into()),
        ready_containers: staying.iter().filter(|s| s.ready).count() as u32,
        containers: spec.map_or(0, |s| s.containers.len() + sidecars.len()) as u32,
        ready: is_true("Ready"),
        restarts,
        ip: status.pod_ip.clone(),
        created_at: created.map(|t| t.0.to_string()),
        reason: reason(desired, status, inits, mains),
    }
}

/// Why the pod does not run as asked, or nothing.
fn reason(
    desired: &DesiredPod,
    status: &PodStatus,
    inits: &[ContainerStatus],
    mains: &[ContainerStatus],
) -> String {
    if let Some(why) = &status.reason {
        return match &status.message {
            Some(words) if !words.is_empty() => format!("{why}: {words}"),
            _ => why.clone(),
        };
    }
    if status.phase.as_deref() == Some("Succeeded") {
        return String::new();
    }
    let mut reasons: Vec<String> = vec![];
    if desired.pod.metadata.deletion_timestamp.is_some() {
        reasons.push("being deleted".into());
    }
    let of_init: Vec<_> =
        inits.iter().filter(|s| !s.ready).filter_map(|s| container_reason(s, true)).collect();
    let initializing = !of_init.is_empty();
    reasons.extend(of_init);
    // While init containers are busy the main ones only wait for them.
    let mains = mains.iter().filter(|s| !initializing || !waits_for_its_turn(s));
    reasons.extend(mains.filter(|s| !s.ready).filter_map(|s| container_reason(s, false)));
    if reasons.is_empty() {
        let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready" && c.status != "True");
        reasons.extend(ready.and_then(|c| c.message.clone()));
    }
    reasons.dedup();
    reasons.join("; ")
}

fn container_reason(status: &ContainerStatus, init: bool) -> Option<String> {
    let name = &status.name;
    let state = status.state.as_ref()?;
    let with = |text: String, message: &Option<String>| match message.as_deref().unwrap_or_default().trim() {
        "" => text,
        message => format!("{text}: {}", message.lines().next().unwrap_or_default()),
    };
    if let Some(waiting) = &state.waiting {
        if init && waits_for_its_turn(status) && waiting.message.is_none() {
            return None;
        }
        let why = waiting.reason.as_deref().unwrap_or("waiting");
        return Some(with(format!("{name}: {why}"), &waiting.message));
    }
    if let Some(end) = &state.terminated {
        let why = end.reason.as_deref().unwrap_or("ended");
        return Some(with(format!("{name}: {why} (exit code {})", end.exit_code), &end.message));
    }
    let word = match (init, status.started) {
        (true, Some(true)) => "is running before the main containers",
        (_, Some(true)) => "is not ready",
        _ => "is starting",
    };
    Some(format!("{name}: {word}"))
}

fn waits_for_its_turn(status: &ContainerStatus) -> bool {
    let waiting = status.state.as_ref().and_then(|s| s.waiting.as_ref());
    waiting.is_some_and(|w| w.reason.as_deref() == Some("PodInitializing"))
}
