//! The three classes that decide who gives way when the machine runs short.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::resources::{ResourceList, amounts};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::Guaranteed => "Guaranteed",
            QosClass::Burstable => "Burstable",
            QosClass::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The class of a pod: the one its status carries, because it never changes once given, else computed.
pub fn qos_of(pod: &Pod) -> QosClass {
    match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Guaranteed") => QosClass::Guaranteed,
        Some("Burstable") => QosClass::Burstable,
        Some("BestEffort") => QosClass::BestEffort,
        _ => pod.spec.as_ref().map_or(QosClass::BestEffort, qos_class),
    }
}

/// Guaranteed when cpu and memory are limited everywhere and every request equals its limit; best effort when nothing
/// is asked for; burstable in between. Pod-level resources, where given, speak for all containers.
pub fn qos_class(spec: &PodSpec) -> QosClass {
    let mut requests = ResourceList::new();
    let mut limits = ResourceList::new();
    let mut all_limited = true;
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    match &spec.resources {
        Some(own) => {
            collect(&mut requests, own.requests.as_ref());
            let found = collect(&mut limits, own.limits.as_ref());
            // Limits that are left out altogether show below, as a difference to the requests.
            all_limited = own.limits.as_ref().is_none_or(BTreeMap::is_empty) || found.len() == 2;
        }
        None => {
            for container in containers {
                let none = ResourceRequirements::default();
                let own = container.resources.as_ref().unwrap_or(&none);
                collect(&mut requests, own.requests.as_ref());
                all_limited &= collect(&mut limits, own.limits.as_ref()).len() == 2;
            }
        }
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if all_limited && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// Adds what counts for the class, and tells which of cpu and memory were there.
fn collect(sum: &mut ResourceList, list: Option<&BTreeMap<String, Quantity>>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (name, amount) in amounts(list) {
        if matches!(name.as_str(), "cpu" | "memory") && amount.is_positive() {
            sum.entry(name.clone()).and_modify(|a| *a = *a + amount).or_insert(amount);
            found.insert(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn class(containers: Value, init: Value, pod_level: Value) -> QosClass {
        let spec = json!({"containers": containers, "initContainers": init, "resources": pod_level});
        qos_class(&serde_json::from_value(spec).unwrap())
    }

    fn container(name: &str, requests: Value, limits: Value) -> Value {
        json!({"name": name, "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn the_class_follows_from_requests_and_limits() {
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let none = json!({});
        for (what, containers, init, pod_level, want) in [
            (
                "nothing asked for",
                json!([container("a", none.clone(), none.clone())]),
                json!([]),
                json!(null),
                "BestEffort",
            ),
            (
                "other resources do not count",
                json!([container("a", json!({"x/y": "1"}), none.clone())]),
                json!([]),
                json!(null),
                "BestEffort",
            ),
            (
                "a zero request counts as none",
                json!([container("a", json!({"cpu": "0"}), none.clone())]),
                json!([]),
                json!(null),
                "BestEffort",
            ),
            (
                "requests equal limits",
                json!([container("a", full.clone(), full.clone())]),
                json!([]),
                json!(null),
                "Guaranteed",
            ),
            (
                "written differently and still equal",
                json!([container("a", json!({"cpu": "1000m", "memory": "1024Mi"}), full.clone())]),
                json!([]),
                json!(null),
                "Guaranteed",
            ),
            (
                "memory unlimited",
                json!([container("a", full.clone(), json!({"cpu": "1"}))]),
                json!([]),
                json!(null),
                "Burstable",
            ),
            (
                "only a request",
                json!([container("a", json!({"cpu": "1m"}), none.clone())]),
                json!([]),
                json!(null),
                "Burstable",
            ),
            (
                "one of two containers asks for nothing",
                json!([
                    container("a", full.clone(), full.clone()),
                    container("b", none.clone(), none.clone())
                ]),
                json!([]),
                json!(null),
                "Burstable",
            ),
            (
                "an init container counts too",
                json!([container("a", full.clone(), full.clone())]),
                json!([container("i", none.clone(), none.clone())]),
                json!(null),
                "Burstable",
            ),
            (
                "pod-level resources speak for all",
                json!([container("a", none.clone(), none.clone())]),
                json!([]),
                json!({"requests": full, "limits": full}),
                "Guaranteed",
            ),
            (
                "pod-level requests without limits",
                json!([container("a", full.clone(), full.clone())]),
                json!([]),
                json!({"requests": full}),
                "Burstable",
            ),
            (
                "pod-level limit for cpu only",
                json!([container("a", none.clone(), none.clone())]),
                json!([]),
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}),
                "Burstable",
            ),
        ] {
            assert_eq!(class(containers, init, pod_level).as_str(), want, "{what}");
        }
    }
}
