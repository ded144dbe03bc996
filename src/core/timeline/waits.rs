//! What a pod at rest waits for, and what would change it: read from the same state and plan that the worker acts on.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodStatus};

use super::going::exit_cause;
use super::wait::{Detail, Wait};
use crate::desired::{DesiredPod, Lifecycle, TerminationReason};
use crate::facts::Facts;
use crate::image::{PULL_BACK_OFF, image_of_volume, is_failed_pull};
use crate::observed::{ContainerState, ObservedPod, SandboxState};
use crate::plan::Plan;
use crate::pod::{CleanUp, PendingReason, PodState, VolumesState, Waiting};
use crate::resources::is_sidecar;

pub struct WaitInput<'a> {
    pub state: &'a PodState,
    pub plan: &'a Plan,
    pub observed: &'a ObservedPod,
    pub facts: &'a Facts,
    /// There is no apiserver that could bring what is missing.
    pub standalone: bool,
}

/// Empty for a pod that is as it should be.
pub fn waits(input: &WaitInput<'_>) -> Vec<Wait> {
    let state = input.state;
    match &state.lifecycle {
        Lifecycle::Syncing => match &state.desired {
            Some(desired) => syncing(input, desired),
            None => vec![],
        },
        Lifecycle::Terminating { .. } => retried(input).into_iter().collect(),
        Lifecycle::Terminated { reason } => ended(input, reason),
    }
}

fn ended(input: &WaitInput<'_>, reason: &TerminationReason) -> Vec<Wait> {
    if let Some(wait) = retried(input) {
        return vec![wait];
    }
    let deleted = matches!(reason, TerminationReason::Deleted | TerminationReason::Orphaned);
    match (&input.state.clean_up, deleted) {
        (CleanUp::Finished(_), false) => {
            vec![Wait::pod("it has ended and waits for nothing", "it stays as it is until it is deleted")]
        }
        _ => vec![],
    }
}

/// An action failed whose failure has no place of its own.
fn retried(input: &WaitInput<'_>) -> Option<Wait> {
    let at = input.state.held_until(input.facts.now)?;
    let wait = Wait::pod("the last thing that was done for it failed", "it is tried again");
    Some(wait.see(Detail::Latest).until(Some(at)))
}

fn syncing(input: &WaitInput<'_>, desired: &DesiredPod) -> Vec<Wait> {
    let Some(spec) = &desired.pod.spec else { return vec![] };
    if is_settled(input.state, input.plan) {
        return vec![];
    }
    let of_pod = volumes(input, desired).or_else(|| sandbox(input)).or_else(|| retried(input));
    if let Some(wait) = of_pod {
        return vec![wait];
    }
    let mut waits = vec![];
    let inits = spec.init_containers.iter().flatten();
    for container in inits.chain(&spec.containers) {
        let found = held(input, desired, container).or_else(|| running(input, spec, container));
        waits.extend(found);
    }
    waits.extend(resize(input));
    if waits.is_empty() {
        waits.extend(gates(&input.state.previous_status));
    }
    waits
}

/// It runs with what it was granted, and its spec asks for something else.
fn resize(input: &WaitInput<'_>) -> Option<Wait> {
    let resize = &input.state.resize;
    if let Some(pending) = &resize.pending {
        let wait = format!("its resize is not granted ({}): {}", pending.reason.word(), pending.message);
        let change = match pending.reason {
            PendingReason::Deferred => {
                "it is granted when other pods leave room for it, or when its spec asks for less"
            }
            PendingReason::Infeasible => "it never is on this node; its spec has to ask for something else",
        };
        return Some(Wait::pod(wait, change));
    }
    let error = resize.in_progress.as_ref()?.error.as_ref()?;
    let wait = Wait::pod(format!("its resize failed: {error}"), "it is tried again");
    Some(wait.until(resize.retry_at))
}

/// A pod that is ready and is to run waits for nothing: most pods, most of the time.
pub fn is_settled(state: &PodState, plan: &Plan) -> bool {
    let resize = &state.resize;
    let resizes = resize.pending.is_some() || resize.in_progress.is_some();
    state.lifecycle.is_syncing() && !resizes && plan.waiting.is_empty() && is_ready(&state.previous_status)
}

fn is_ready(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn volumes(input: &WaitInput<'_>, desired: &DesiredPod) -> Option<Wait> {
    let VolumesState::Failed(message) = &input.state.volumes.state else { return None };
    let (what, then) = match missing_object(message, desired.namespace()) {
        Some(object) => absent(&object, input.standalone),
        None => {
            (format!("a volume is not ready: {message}"), "it goes on when the volume can be set up".into())
        }
    };
    Some(Wait::pod(what, then).until(input.state.volumes.next_review()))
}

fn sandbox(input: &WaitInput<'_>) -> Option<Wait> {
    let ready = input.observed.latest_sandbox().is_some_and(|s| s.state == SandboxState::Ready);
    let failure = input.state.sandbox.failure.as_ref().filter(|_| !ready)?;
    let then = match failure.reason.as_str() {
        "NetworkNotReady" => "it goes on when the runtime says that its network is ready",
        _ => "it goes on when the runtime can make the sandbox",
    };
    Some(Wait::pod(failure.message.clone(), then).until(failure.retry_at))
}

/// A container that is not started: the plan holds it back, or its last start failed.
fn held(input: &WaitInput<'_>, desired: &DesiredPod, container: &Container) -> Option<Wait> {
    let name = container.name.as_str();
    if let Some(crashed) = input.plan.waiting.get(name) {
        return Some(crash(input, name, crashed));
    }
    let waiting = input.state.waiting(name)?;
    let own = container.image.as_deref().unwrap_or_default();
    let image = image_of_volume(&waiting.message).unwrap_or(own);
    let (what, then) = match waiting.reason.as_str() {
        reason if reason == PULL_BACK_OFF || is_failed_pull(reason) => (
            format!("backs off from pulling {image}: {}", pull_error(&waiting.message)),
            "it goes on when a pull succeeds, or when the spec names another image".to_owned(),
        ),
        "ErrImageNeverPull" => (
            format!("image {image} is not on this machine, and its pull policy is Never"),
            "it goes on when the image has been loaded".into(),
        ),
        "InvalidImageName" => {
            (waiting.message.clone(), "it goes on when the spec names an image that can be read".into())
        }
        "CreateContainerConfigError" => match missing_object(&waiting.message, desired.namespace()) {
            Some(object) => absent(&object, input.standalone),
            None => (waiting.message.clone(), "it goes on when what it refers to is right".into()),
        },
        _ => (
            format!("{}: {}", waiting.reason, waiting.message),
            "it goes on when the runtime can create and start it".into(),
        ),
    };
    Some(Wait::pod(what, then).of(name).until(waiting.retry_at))
}

fn crash(input: &WaitInput<'_>, name: &str, waiting: &Waiting) -> Wait {
    let last = input.observed.latest(name).filter(|c| c.state == ContainerState::Exited);
    let how = last.map_or_else(|| "it ended".to_owned(), |c| exit_cause(c, ""));
    let what = format!("backs off from starting it again: {how}");
    let then = "it is started again then; another image or other resources start it at once";
    Wait::pod(what, then).of(name).until(waiting.retry_at)
}

/// A container that runs, and that others wait for.
fn running(input: &WaitInput<'_>, spec: &PodSpec, container: &Container) -> Option<Wait> {
    let name = container.name.as_str();
    let found = input.observed.latest(name).filter(|c| c.state == ContainerState::Running)?;
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    if inits.iter().any(|c| c.name == name) && !is_sidecar(container) {
        let what = "it is running, and what comes after it waits for its end";
        return Some(Wait::pod(what, "it goes on when it has ended without a failure").of(name));
    }
    if input.state.hook_running(&found.id) {
        return Some(Wait::pod("its postStart hook is running", "it goes on when the hook returns").of(name));
    }
    let verdicts = input.facts.probes.get(&found.id)?;
    let (probe, then) = match (verdicts.started, verdicts.ready) {
        (false, _) => (
            "startup",
            "it goes on when the probe succeeds; when it has failed too often the container is ended",
        ),
        (true, false) => ("readiness", "it is ready when the probe succeeds"),
        (true, true) => return None,
    };
    Some(Wait::pod(format!("its {probe} probe has not succeeded"), then).of(name).see(Detail::Probe))
}

/// All containers are ready, and somebody else has not said so.
fn gates(status: &PodStatus) -> Option<Wait> {
    let is = |kind: &str, value: &str| {
        status.conditions.iter().flatten().find(|c| c.type_ == kind && c.status == value)
    };
    is("ContainersReady", "True")?;
    let what = is("Ready", "False")?.message.clone()?;
    Some(Wait::pod(what, "it is ready when whoever sets this condition does"))
}

/// An object in the words of this agent's own errors, such as `secret "db" not found`, with the namespace of its pod.
pub(super) fn missing_object(message: &str, namespace: &str) -> Option<String> {
    ["secret", "configmap"].into_iter().find_map(|kind| {
        let (_, rest) = message.split_once(&format!("{kind} \""))?;
        let (name, rest) = rest.split_once('"')?;
        rest.starts_with(" not found").then(|| format!("{kind} {namespace}/{name}"))
    })
}

fn absent(object: &str, standalone: bool) -> (String, String) {
    if standalone {
        let what = format!("waits for {object}, and this node has no apiserver to get it from");
        return (what, "it goes on when its manifest does not refer to it any more".into());
    }
    let kind = object.split(' ').next().unwrap_or_default();
    (format!("waits for {object}, which does not exist"), format!("it goes on when the {kind} is created"))
}

/// Without what the status puts before it.
fn pull_error(message: &str) -> &str {
    match message.strip_prefix("Back-off pulling image ") {
        Some(rest) => rest.split_once(": ").map_or(rest, |(_, error)| error),
        None => message,
    }
}
