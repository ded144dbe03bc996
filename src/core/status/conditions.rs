//! The conditions of a pod.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};

use super::{Derivation, is_final, may_be_running, second, termination};
use crate::desired::TerminationReason;
use crate::observed::SandboxState;
use crate::plan::may_restart_all;
use crate::resources::is_sidecar;

/// What this agent writes. Every other condition belongs to someone else and is passed on as the API has it.
const OWN: [&str; 8] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];
const DISRUPTION: &str = "DisruptionTarget";

/// What a condition says, before it gets its times.
struct Verdict {
    holds: bool,
    reason: &'static str,
    message: String,
}

impl Verdict {
    fn yes() -> Self {
        Self { holds: true, reason: "", message: String::new() }
    }
    fn no(reason: &'static str, message: impl Into<String>) -> Self {
        Self { holds: false, reason, message: message.into() }
    }
}

pub(super) fn all(d: &Derivation<'_>, status: &PodStatus) -> Vec<PodCondition> {
    let previous = d.state.previous_status.conditions.as_deref().unwrap_or_default();
    let api = d.desired.pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();

    let mut list: Vec<PodCondition> =
        api.iter().filter(|c| !OWN.contains(&c.type_.as_str())).cloned().collect();
    if let Some(disruption) = disruption(d, status, previous) {
        list.retain(|c| c.type_ != DISRUPTION);
        list.push(disruption);
    }
    let containers = containers_ready(d, status);
    let ready = match containers.holds {
        true => gates_open(d, &list),
        false => Verdict::no(containers.reason, containers.message.clone()),
    };
    let has_sandbox = if has_sandbox(d) { Verdict::yes() } else { Verdict::no("", "") };
    for (kind, verdict) in [
        ("PodReadyToStartContainers", has_sandbox),
        ("Initialized", initialized(d, status)),
        ("Ready", ready),
        ("ContainersReady", containers),
        ("PodScheduled", Verdict::yes()),
    ] {
        list.push(condition(d, previous, kind, verdict));
    }
    if !status.phase.as_deref().is_some_and(is_final) {
        let resize = &d.state.resize;
        let pending = resize.pending.as_ref().map(|p| (p.reason.word(), p.message.as_str(), p.generation));
        list.extend(pending.map(|shown| resize_condition(d, previous, "PodResizePending", shown)));
        let going = resize.in_progress.as_ref().map(|r| match &r.error {
            Some(error) => ("Error", error.as_str(), r.generation),
            None => ("", "", r.generation),
        });
        list.extend(going.map(|shown| resize_condition(d, previous, "PodResizeInProgress", shown)));
    }
    if may_restart_all(d.spec) {
        list.push(condition(d, previous, "AllContainersRestarting", restarting(d, status)));
    }
    list
}

fn condition(d: &Derivation<'_>, previous: &[PodCondition], kind: &str, verdict: Verdict) -> PodCondition {
    let status = if verdict.holds { "True" } else { "False" };
    let before = previous.iter().find(|c| c.type_ == kind && c.status == status);
    let since = before.and_then(|c| c.last_transition_time.as_ref()).map_or(d.facts.now, |t| t.0);
    let text = |t: String| (!t.is_empty()).then_some(t);
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: text(verdict.reason.to_owned()),
        message: text(verdict.message),
        last_transition_time: Some(second(since)),
        last_probe_time: None,
        observed_generation: d.desired.pod.metadata.generation.filter(|g| *g > 0),
    }
}

/// These two are about the generation of the spec that was judged or granted, which may be an older one. They change by their
/// reason.
fn resize_condition(
    d: &Derivation<'_>,
    previous: &[PodCondition],
    kind: &str,
    (reason, message, generation): (&str, &str, i64),
) -> PodCondition {
    let text = |t: &str| Some(t.to_owned()).filter(|t| !t.is_empty());
    let before = previous.iter().find(|c| c.type_ == kind && c.reason.as_deref().unwrap_or("") == reason);
    let since = before.and_then(|c| c.last_transition_time.as_ref()).map_or(d.facts.now, |t| t.0);
    PodCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: text(reason),
        message: text(message),
        last_transition_time: Some(second(since)),
        last_probe_time: None,
        observed_generation: Some(generation).filter(|g| *g > 0),
    }
}

fn containers_ready(d: &Derivation<'_>, status: &PodStatus) -> Verdict {
    match status.phase.as_deref() {
        Some("Failed") => return Verdict::no("PodFailed", ""),
        Some("Succeeded") => return Verdict::no("PodCompleted", ""),
        _ => {}
    }
    let sidecars = d.spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let (mut unknown, mut unready) = (vec![], vec![]);
    for container in sidecars.chain(&d.spec.containers) {
        match find(status, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) if !s.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    let message = listed(&unknown, "unknown", &unready, "unready");
    if message.is_empty() { Verdict::yes() } else { Verdict::no("ContainersNotReady", message) }
}

fn gates_open(d: &Derivation<'_>, conditions: &[PodCondition]) -> Verdict {
    let mut closed = vec![];
    for gate in d.spec.readiness_gates.iter().flatten().map(|g| &g.condition_type) {
        match conditions.iter().find(|c| c.type_ == *gate) {
            None => {
                closed.push(format!("corresponding condition of pod readiness gate {gate:?} does not exist."))
            }
            Some(c) if c.status != "True" => {
                closed.push(format!(
                    "the status of pod readiness gate {gate:?} is not \"True\", but {}",
                    c.status
                ));
            }
            Some(_) => {}
        }
    }
    if closed.is_empty() { Verdict::yes() } else { Verdict::no("ReadinessGatesNotReady", closed.join(", ")) }
}

fn initialized(d: &Derivation<'_>, status: &PodStatus) -> Verdict {
    let (mut unknown, mut incomplete) = (vec![], vec![]);
    for container in d.spec.init_containers.iter().flatten() {
        match find(status, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(s) if is_sidecar(container) && s.started != Some(true) => {
                incomplete.push(container.name.as_str())
            }
            Some(s) if !is_sidecar(container) && !s.ready => incomplete.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if status.phase.as_deref() == Some("Succeeded") && unknown.is_empty() {
        return Verdict { reason: "PodCompleted", ..Verdict::yes() };
    }
    // A main container that has run proves it, and what was true once stays: a restarting sidecar undoes nothing.
    let has_run =
        |s: &ContainerStatus| s.state.as_ref().is_some_and(|s| s.running.is_some() || s.terminated.is_some());
    let was = d.state.previous_status.conditions.iter().flatten();
    let was = was.into_iter().any(|c| c.type_ == "Initialized" && c.status == "True");
    let message = listed(&unknown, "unknown", &incomplete, "incomplete");
    if message.is_empty() || was || status.container_statuses.iter().flatten().any(has_run) {
        return Verdict::yes();
    }
    Verdict::no("ContainersNotInitialized", message)
}

fn restarting(d: &Derivation<'_>, status: &PodStatus) -> Verdict {
    match status.phase.as_deref() {
        Some("Failed") => Verdict::no("PodFailed", ""),
        Some("Succeeded") => Verdict::no("PodCompleted", ""),
        _ if !d.restarting_all() => Verdict::no("", ""),
        _ => {
            let message = "container exited with restart policy rule".to_owned();
            Verdict { holds: true, reason: "RestartAllContainersStarted", message }
        }
    }
}

/// One ready sandbox, the newest, with the network that the pod asks for.
fn has_sandbox(d: &Derivation<'_>) -> bool {
    let ready = d.observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
    d.observed.latest_sandbox().is_some_and(|s| {
        ready == 1
            && s.state == SandboxState::Ready
            && s.host_network == d.host_network()
            && (s.host_network || !s.ips.is_empty())
    })
}

/// Controllers count an eviction by the node differently from a failure of the pod, once it is over.
fn disruption(d: &Derivation<'_>, status: &PodStatus, previous: &[PodCondition]) -> Option<PodCondition> {
    let known = previous.iter().find(|c| c.type_ == DISRUPTION).cloned();
    let over = status.phase.as_deref().is_some_and(is_final) && !may_be_running(d);
    let Some(TerminationReason::Evicted { reason, message }) = termination(d) else { return known };
    if !over || !matches!(reason.as_str(), "Evicted" | "Preempting" | "Terminated") {
        return known;
    }
    let verdict = Verdict { holds: true, reason: "TerminationByKubelet", message: message.clone() };
    Some(condition(d, previous, DISRUPTION, verdict))
}

fn find<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let mut all =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    all.find(|s| s.name == name)
}

fn listed(a: &[&str], a_word: &str, b: &[&str], b_word: &str) -> String {
    let part = |names: &[&str], word: &str| format!("containers with {word} status: [{}]", names.join(" "));
    let parts = [(a, a_word), (b, b_word)].into_iter().filter(|(names, _)| !names.is_empty());
    parts.map(|(names, word)| part(names, word)).collect::<Vec<_>>().join(", ")
}
