//! Ready and the three pressures, in the kubelet's words: dashboards and scripts look for them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::NodeFacts;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pid: bool,
}

/// Replaces our four in `known` and leaves everyone else's. Ready comes last among them.
pub(super) fn conditions(
    facts: &NodeFacts,
    mut known: Vec<NodeCondition>,
    now: Timestamp,
) -> Vec<NodeCondition> {
    let pressure = facts.signals.pressure;
    let ours = [
        state(
            "MemoryPressure",
            pressure.memory,
            ["KubeletHasInsufficientMemory", "kubelet has insufficient memory available"],
            ["KubeletHasSufficientMemory", "kubelet has sufficient memory available"],
        ),
        state(
            "DiskPressure",
            pressure.disk,
            ["KubeletHasDiskPressure", "kubelet has disk pressure"],
            ["KubeletHasNoDiskPressure", "kubelet has no disk pressure"],
        ),
        state(
            "PIDPressure",
            pressure.pid,
            ["KubeletHasInsufficientPID", "kubelet has insufficient PID available"],
            ["KubeletHasSufficientPID", "kubelet has sufficient PID available"],
        ),
        ready(facts),
    ];
    for mut condition in ours {
        condition.last_heartbeat_time = Some(Time(whole_seconds(now)));
        let before = known.iter_mut().find(|old| old.type_ == condition.type_);
        condition.last_transition_time = match &before {
            Some(old) if old.status == condition.status => old.last_transition_time.clone(),
            _ => Some(Time(whole_seconds(now))),
        };
        match before {
            Some(old) => *old = condition,
            None => known.push(condition),
        }
    }
    known
}

fn state(type_: &str, holds: bool, yes: [&str; 2], no: [&str; 2]) -> NodeCondition {
    let [reason, message] = if holds { yes } else { no };
    NodeCondition {
        type_: type_.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..NodeCondition::default()
    }
}

fn ready(facts: &NodeFacts) -> NodeCondition {
    let mut problems = facts.runtime.state.problems();
    problems.extend(facts.signals.problems.values().cloned());
    let missing: Vec<&str> = [
        ("cpu", facts.capacity.cpu_millis),
        ("memory", facts.capacity.memory_bytes),
        ("pods", u64::from(facts.capacity.pods)),
        ("ephemeral-storage", facts.capacity.ephemeral_storage_bytes),
    ]
    .into_iter()
    .filter_map(|(name, amount)| (amount == 0).then_some(name))
    .collect();
    if !missing.is_empty() {
        problems.push(format!("missing node capacity for resources: {}", missing.join(", ")));
    }
    let words = match problems.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    state(
        "Ready",
        problems.is_empty(),
        ["KubeletReady", "kubelet is posting ready status"],
        ["KubeletNotReady", &words],
    )
}

/// The API keeps whole seconds; sending more would make every status look changed.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// A change that is worth an event on the Node: its reason, as the kubelet records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTransition {
    pub reason: &'static str,
    /// "Node NAME status is now: REASON".
    pub message: String,
}

/// The events that follow from going from one set of conditions to another.
pub fn transitions(node: &str, old: &[NodeCondition], new: &[NodeCondition]) -> Vec<NodeTransition> {
    let reasons = [
        ("MemoryPressure", "NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
        ("DiskPressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"),
        ("PIDPressure", "NodeHasInsufficientPID", "NodeHasSufficientPID"),
        ("Ready", "NodeReady", "NodeNotReady"),
    ];
    let status = |list: &[NodeCondition], type_: &str| {
        list.iter().find(|condition| condition.type_ == type_).map(|condition| condition.status.clone())
    };
    let mut found = Vec::new();
    for (type_, yes, no) in reasons {
        let (before, after) = (status(old, type_), status(new, type_));
        // A node that was never Ready did not become NotReady.
        if after.is_none()
            || before == after
            || (type_ == "Ready" && before.is_none() && after.as_deref() != Some("True"))
        {
            continue;
        }
        let reason = if after.as_deref() == Some("True") { yes } else { no };
        found.push(NodeTransition { reason, message: format!("Node {node} status is now: {reason}") });
    }
    found
}
