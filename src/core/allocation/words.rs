//! What events say about a resize: the same as a kubelet's, with the resources as JSON.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use serde::Serialize;

use crate::plan::PlannedEvent;
use crate::pod::{PendingReason, PendingResize};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<ContainerSummary>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<ContainerSummary>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: String,
}

#[derive(Serialize)]
struct ContainerSummary {
    name: String,
    resources: ResourceRequirements,
}

/// The node has granted what the spec asks for.
pub fn started(pod: &Pod, generation: i64) -> PlannedEvent {
    PlannedEvent::normal("ResizeStarted", message("Pod resize started", pod, generation, ""))
}

/// The cgroups have what was granted.
pub fn completed(pod: &Pod, generation: i64) -> PlannedEvent {
    PlannedEvent::normal("ResizeCompleted", message("Pod resize completed", pod, generation, ""))
}

pub fn failed(pod: &Pod, generation: i64, error: &str) -> PlannedEvent {
    PlannedEvent::warning("ResizeError", message("Pod resize error", pod, generation, error))
}

pub fn pending(pod: &Pod, pending: &PendingResize) -> PlannedEvent {
    let event = match pending.reason {
        PendingReason::Deferred => "ResizeDeferred",
        PendingReason::Infeasible => "ResizeInfeasible",
    };
    let what = format!("Pod resize {}", pending.reason.word());
    PlannedEvent::warning(event, message(&what, pod, pending.generation, &pending.message))
}

fn message(what: &str, pod: &Pod, generation: i64, error: &str) -> String {
    let of = |c: &Container| ContainerSummary {
        name: c.name.clone(),
        resources: c.resources.clone().unwrap_or_default(),
    };
    let Some(spec) = &pod.spec else { return what.to_owned() };
    let summary = Summary {
        init_containers: spec.init_containers.iter().flatten().map(of).collect(),
        containers: spec.containers.iter().map(of).collect(),
        generation,
        error: error.to_owned(),
    };
    serde_json::to_string(&summary).map_or_else(|_| what.to_owned(), |json| format!("{what}: {json}"))
}
