//! The status that a pod's API object shows, computed from what was asked for, what runs, and what was shown before.
//!
//! Architecture invariant: a status only moves forward. A finished phase stays, a container that ended does not come
//! back without a new instance, restart counts do not shrink, and what the runtime has forgotten lives on from the
//! status before. Computing it again from the same inputs changes nothing.

mod conditions;
mod container;
mod ended;
mod ephemeral;
mod phase;
mod resources;
mod restarting;
mod row;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{HostIP, Pod, PodIP, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::desired::{DesiredPod, Lifecycle, PodSource, TerminationReason};
use crate::facts::Facts;
use crate::observed::{ContainerState, ObservedPod, SandboxState};
use crate::pod::{PodState, Waiting};
use crate::qos::qos_of;

pub use row::view_row;

/// What a status is computed from.
pub struct StatusInput<'a> {
    pub desired: &'a DesiredPod,
    pub observed: &'a ObservedPod,
    pub state: &'a PodState,
    pub facts: &'a Facts,
    /// Containers that the plan holds back, by name, and why.
    pub held_back: &'a BTreeMap<String, Waiting>,
}

/// What one derivation works on.
pub(crate) struct Derivation<'a> {
    pub desired: &'a DesiredPod,
    pub spec: &'a PodSpec,
    pub observed: &'a ObservedPod,
    pub state: &'a PodState,
    pub facts: &'a Facts,
    pub held_back: &'a BTreeMap<String, Waiting>,
}

pub fn derive(input: &StatusInput<'_>) -> PodStatus {
    let StatusInput { desired, observed, state, facts, held_back } = *input;
    let none = PodSpec::default();
    let spec = desired.pod.spec.as_ref().unwrap_or(&none);
    let d = Derivation { desired, spec, observed, state, facts, held_back };
    let previous = &state.previous_status;
    let api = desired.pod.status.as_ref();

    let mut status = PodStatus {
        qos_class: Some(qos_of(&desired.pod).as_str().to_owned()),
        start_time: start_time(&d),
        observed_generation: observed_generation(&desired.pod, previous),
        allocated_resources: resources::allocated(spec),
        // Owned by others, kept as the API has it.
        nominated_node_name: api.and_then(|s| s.nominated_node_name.clone()),
        resize: api.and_then(|s| s.resize.clone()),
        resource_claim_statuses: api.and_then(|s| s.resource_claim_statuses.clone()),
        extended_resource_claim_status: api.and_then(|s| s.extended_resource_claim_status.clone()),
        node_allocatable_resource_claim_statuses: api
            .and_then(|s| s.node_allocatable_resource_claim_statuses.clone()),
        ..Default::default()
    };
    if !was_refused(&d) {
        container::fill(&d, &mut status);
    }
    if matches!(state.lifecycle, Lifecycle::Terminated { .. }) {
        ended::mark_unfinished(&d, &mut status);
    }
    set_phase(&d, &mut status);
    set_addresses(&d, &mut status);
    let running = status.phase.as_deref() == Some("Running");
    // Where no resize is under way, the cgroups have what was granted.
    let actuated = state.actuated.as_deref().filter(|_| state.resize.in_progress.is_some());
    status.resources = Some(resources::of_pod(&desired.pod, actuated, running));
    status.conditions = Some(conditions::all(&d, &status));
    status
}

/// The status of a pod in the midst of an action. That it has ended is for the round after the action to say, which knows why.
pub fn derive_meanwhile(input: &StatusInput<'_>) -> Option<PodStatus> {
    let ended_before = is_finished(&input.state.previous_status);
    Some(derive(input)).filter(|status| ended_before || !is_finished(status))
}

fn set_phase(d: &Derivation<'_>, status: &mut PodStatus) {
    let previous = &*d.state.previous_status;
    let api = d.desired.pod.status.as_ref();
    let final_phase = |s: &PodStatus| s.phase.clone().filter(|p| is_final(p));
    let carried = api.and_then(final_phase).or_else(|| final_phase(previous));

    if let Some(phase) = carried {
        let from_api = api.filter(|s| s.phase.as_ref() == Some(&phase));
        let from = if previous.phase.as_ref() == Some(&phase) { Some(previous) } else { from_api };
        status.reason =
            from.and_then(|s| s.reason.clone()).or_else(|| from_api.and_then(|s| s.reason.clone()));
        status.message =
            from.and_then(|s| s.message.clone()).or_else(|| from_api.and_then(|s| s.message.clone()));
        status.phase = Some(phase);
        return;
    }
    let mut phase = phase::of(d, status);
    // What is over has an end. Only a manifest's mirror may stay as it was: its pod may come back.
    if matches!(d.state.lifecycle, Lifecycle::Terminated { .. }) && !is_final(phase) && !d.is_static() {
        phase = "Failed";
    }
    let (mut reason, mut message) = (None, None);
    if previous.phase.as_deref() == Some(phase) {
        reason = previous.reason.clone();
        message = previous.message.clone();
    }
    let decided = match termination(d) {
        Some(TerminationReason::Refused { reason, message }) => {
            Some((reason, format!("Pod was rejected: {message}")))
        }
        Some(TerminationReason::Evicted { reason, message }) => Some((reason, message.clone())),
        _ => None,
    };
    if let Some((why, words)) = decided {
        phase = "Failed";
        (reason, message) = (Some(why.clone()), Some(words));
    }
    // A pod that may still hold something exclusive is not reported as over.
    if is_final(phase) && may_be_running(d) {
        phase = match previous.phase.as_deref() {
            Some("Running") => "Running",
            _ if status_has_run(status) => "Running",
            _ => "Pending",
        };
        (reason, message) = (previous.reason.clone(), previous.message.clone());
    }
    status.phase = Some(phase.to_owned());
    status.reason = reason.filter(|r| !r.is_empty());
    status.message = message.filter(|m| !m.is_empty());
}

/// A pod that was never begun has no containers to show: nobody is to read an exit code into it. After a deletion or a restart
/// of the agent, the status from before says so.
fn was_refused(d: &Derivation<'_>) -> bool {
    let lists = |s: &PodStatus| [&s.container_statuses, &s.init_container_statuses].map(Option::is_some);
    let previous = &*d.state.previous_status;
    let refused = matches!(termination(d), Some(TerminationReason::Refused { .. })) || is_finished(previous);
    refused && d.observed.containers.is_empty() && lists(previous) == [false, false]
}

fn status_has_run(status: &PodStatus) -> bool {
    let mut states = status.container_statuses.iter().flatten().filter_map(|c| c.state.as_ref());
    states.any(|s| s.running.is_some() || s.terminated.is_some())
}

fn set_addresses(d: &Derivation<'_>, status: &mut PodStatus) {
    let previous = &d.state.previous_status;
    let hosts: Vec<String> = d.facts.host_ips.iter().take(2).map(ToString::to_string).collect();
    status.host_ip = hosts.first().cloned().or_else(|| previous.host_ip.clone());
    status.host_ips = match hosts.is_empty() {
        true => previous.host_ips.clone(),
        false => Some(hosts.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
    };

    let ready: Vec<_> = d.observed.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).collect();
    let latest = d.observed.latest_sandbox().filter(|s| s.state == SandboxState::Ready);
    let mut ips: Vec<String> = latest
        .map(|s| s.addresses(&d.facts.host_ips))
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect();
    // A pod that ended keeps the addresses it had, so that they can be told apart in a log.
    if ips.is_empty() && (ready.is_empty() || d.host_network()) {
        ips = previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    }
    if d.host_network() {
        for (index, host) in hosts.iter().enumerate() {
            let other_family = ips.iter().all(|ip| ip.contains(':') != host.contains(':'));
            if ips.len() == index && other_family {
                ips.push(host.clone());
            }
        }
    }
    status.pod_ip = ips.first().cloned();
    status.pod_ips = (!ips.is_empty()).then(|| ips.into_iter().map(|ip| PodIP { ip }).collect());
}

impl Derivation<'_> {
    pub fn host_network(&self) -> bool {
        self.spec.host_network == Some(true)
    }

    /// Why a container is not running, as the plan or the last attempt to start it says.
    pub fn waiting(&self, container: &str) -> Option<&Waiting> {
        self.held_back.get(container).or_else(|| self.state.waiting(container))
    }

    pub fn is_static(&self) -> bool {
        self.desired.source == PodSource::Static
    }
}

pub(crate) fn termination<'a>(d: &'a Derivation<'_>) -> Option<&'a TerminationReason> {
    d.state.lifecycle.end()
}

/// Whether a process of this pod may be left.
pub(crate) fn may_be_running(d: &Derivation<'_>) -> bool {
    let mut states = d.observed.containers.iter().map(|c| c.state);
    !matches!(d.state.lifecycle, Lifecycle::Terminated { .. })
        && states.any(|s| matches!(s, ContainerState::Running | ContainerState::Unknown))
}

/// Succeeded or Failed: a phase that a pod never leaves.
pub(crate) fn is_final(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Whether a status says that its pod has ended for good.
pub fn is_finished(status: &PodStatus) -> bool {
    status.phase.as_deref().is_some_and(is_final)
}

/// Whether the API's status of a pod says so.
pub fn has_finished(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(is_finished)
}

/// The API keeps whole seconds; anything finer would look like a change after a round trip.
pub(crate) fn second(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

fn start_time(d: &Derivation<'_>) -> Option<Time> {
    let known = d.state.previous_status.start_time.clone();
    let known = known.or_else(|| d.desired.pod.status.as_ref().and_then(|s| s.start_time.clone()));
    Some(second(known.map_or(d.facts.now, |t| t.0)))
}

fn observed_generation(pod: &Pod, previous: &PodStatus) -> Option<i64> {
    let seen = previous.observed_generation.unwrap_or(0);
    Some(pod.metadata.generation.unwrap_or(0).max(seen)).filter(|generation| *generation > 0)
}
