//! Memory that is kept for those who asked for it, and the slowing down of containers before they reach their limit: the
//! kubelet's feature MemoryQoS, which needs cgroup v2.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::aggregate::{amount, pod_requests};
use crate::config::{KubeletConfiguration, MemoryReservationPolicy};
use crate::qos::{QosClass, qos_of};

/// Names of the kernel's files.
const MIN: &str = "memory.min";
const LOW: &str = "memory.low";
const HIGH: &str = "memory.high";

/// Memory that the kernel keeps for a cgroup. None leaves what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeptMemory {
    /// Never taken back, even if somebody else has to be killed for it.
    pub min: Option<i64>,
    /// Taken back only when nothing else can be.
    pub low: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MemoryQos {
    /// Memory is kept for pods as they requested it.
    tiered: bool,
    factor: f64,
    /// What all pods together may use.
    allocatable: i64,
    page: i64,
}

impl MemoryQos {
    /// None unless it is switched on.
    pub fn configured(config: &KubeletConfiguration, allocatable: u64, page: u64) -> Option<Self> {
        (config.feature_gates.get("MemoryQoS") == Some(&true)).then(|| Self {
            tiered: config.memory_reservation_policy == MemoryReservationPolicy::TieredReservation,
            factor: config.memory_throttling_factor,
            allocatable: i64::try_from(allocatable).unwrap_or(i64::MAX),
            page: i64::try_from(page).unwrap_or(4096).max(1),
        })
    }

    /// What a container's cgroup is given.
    pub fn container(&self, pod: &Pod, container: &Container, unified: &mut BTreeMap<String, String>) {
        let own = container.resources.as_ref();
        let request = amount(own.and_then(|r| r.requests.as_ref()), "memory").value();
        let limit = amount(own.and_then(|r| r.limits.as_ref()), "memory").value();
        let mut set = |file: &str, bytes: i64| unified.insert(file.to_owned(), bytes.to_string());
        match qos_of(pod) {
            _ if request == 0 || !self.tiered => {
                set(MIN, 0);
                set(LOW, 0);
            }
            QosClass::Guaranteed => drop(set(MIN, request)),
            QosClass::Burstable | QosClass::BestEffort => drop(set(LOW, request)),
        }
        if request != limit
            && let Some(high) = self.throttled_from(request, limit)
        {
            set(HIGH, high);
        }
    }

    /// From where on a container is slowed down: so far on the way from what it requested to what it may use.
    fn throttled_from(&self, request: i64, limit: i64) -> Option<i64> {
        let end = if limit == 0 { self.allocatable } else { limit };
        // In floating point, as the kubelet computes it: to the page the same.
        let bytes = (request as f64 + (end as f64 - request as f64) * self.factor).floor();
        let high = (bytes / self.page as f64) as i64 * self.page;
        (end > 0 && high > request).then_some(high)
    }

    pub fn pod(&self, pod: &Pod) -> KeptMemory {
        let request = memory_request(pod);
        match qos_of(pod) {
            _ if request <= 0 || !self.tiered => KeptMemory::default(),
            QosClass::Guaranteed => KeptMemory { min: Some(request), low: None },
            QosClass::Burstable | QosClass::BestEffort => KeptMemory { min: None, low: Some(request) },
        }
    }

    /// For all pods together, and for all burstable ones. What is kept for a cgroup counts only as far as it is kept for those
    /// above it too.
    pub fn classes<'a>(&self, pods: impl IntoIterator<Item = &'a Pod>) -> (KeptMemory, KeptMemory) {
        let (mut guaranteed, mut burstable) = (0i64, 0i64);
        for pod in pods.into_iter().filter(|_| self.tiered) {
            match qos_of(pod) {
                QosClass::Guaranteed => guaranteed = guaranteed.saturating_add(memory_request(pod)),
                QosClass::Burstable => burstable = burstable.saturating_add(memory_request(pod)),
                QosClass::BestEffort => {}
            }
        }
        let all = KeptMemory { min: Some(guaranteed.saturating_add(burstable)), low: None };
        (all, KeptMemory { min: None, low: Some(burstable) })
    }
}

fn memory_request(pod: &Pod) -> i64 {
    let requests = pod.spec.as_ref().map(pod_requests).unwrap_or_default();
    requests.get("memory").map_or(0, |amount| amount.value())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MI: i64 = 1 << 20;

    /// A name, whether memory is kept, a pod, and the files that are written.
    type Case = (&'static str, bool, Pod, &'static [(&'static str, i64)]);

    fn qos(tiered: bool) -> MemoryQos {
        MemoryQos { tiered, factor: 0.9, allocatable: 8 << 30, page: 4096 }
    }

    /// With these requests and limits of memory, and of CPU where `cpu`.
    fn pod(request: &str, limit: &str, cpu: bool) -> Pod {
        let list = |memory: &str| {
            let mut list = serde_json::Map::new();
            if !memory.is_empty() {
                list.insert("memory".into(), json!(memory));
            }
            if cpu {
                list.insert("cpu".into(), json!("1"));
            }
            Value::Object(list)
        };
        let resources = json!({"requests": list(request), "limits": list(limit)});
        serde_json::from_value(json!({"spec": {"containers": [{"name": "c", "resources": resources}]}}))
            .unwrap()
    }

    fn written(qos: MemoryQos, pod: &Pod) -> Vec<(String, i64)> {
        let mut unified = BTreeMap::new();
        qos.container(pod, &pod.spec.as_ref().unwrap().containers[0], &mut unified);
        unified.into_iter().map(|(file, bytes)| (file, bytes.parse().unwrap())).collect()
    }

    #[test]
    fn it_is_off_unless_its_gate_is_on() {
        let mut config = KubeletConfiguration::default();
        assert_eq!(MemoryQos::configured(&config, 1, 4096), None);
        config.feature_gates.insert("MemoryQoS".into(), false);
        assert_eq!(MemoryQos::configured(&config, 1, 4096), None);
        config.feature_gates.insert("MemoryQoS".into(), true);
        let on = MemoryQos::configured(&config, 1, 4096).unwrap();
        assert_eq!((on.tiered, on.factor, on.allocatable, on.page), (false, 0.9, 1, 4096));
        config.memory_reservation_policy = MemoryReservationPolicy::TieredReservation;
        assert!(MemoryQos::configured(&config, 1, 4096).unwrap().tiered);
    }

    #[test]
    fn a_container_keeps_what_it_requested_and_is_slowed_down_before_its_limit() {
        let cases: [Case; 8] = [
            ("nothing asked for", true, pod("", "", false), &[(LOW, 0), (MIN, 0)]),
            ("guaranteed", true, pod("64Mi", "64Mi", true), &[(MIN, 64 * MI)]),
            ("guaranteed, and nothing is kept", false, pod("64Mi", "64Mi", true), &[(LOW, 0), (MIN, 0)]),
            ("as much as it may use, burstable", true, pod("64Mi", "64Mi", false), &[(LOW, 64 * MI)]),
            (
                "burstable: nine tenths of the way, in whole pages",
                true,
                pod("64Mi", "128Mi", false),
                &[(HIGH, 127_504_384), (LOW, 64 * MI)],
            ),
            (
                "burstable, and nothing is kept",
                false,
                pod("64Mi", "128Mi", false),
                &[(HIGH, 127_504_384), (LOW, 0), (MIN, 0)],
            ),
            ("only a limit", true, pod("0", "100Mi", false), &[(HIGH, 94_371_840), (LOW, 0), (MIN, 0)]),
            ("a page is all there is between", true, pod("4096", "8191", false), &[(LOW, 4096)]),
        ];
        for (case, tiered, pod, expected) in cases {
            let expected: Vec<_> = expected.iter().map(|(file, n)| ((*file).to_owned(), *n)).collect();
            assert_eq!(written(qos(tiered), &pod), expected, "{case}");
        }
        let unlimited = pod("1Gi", "", false);
        let high = ((1i64 << 30) as f64 + (7i64 << 30) as f64 * 0.9) as i64 / 4096 * 4096;
        assert_eq!(written(qos(true), &unlimited), [(HIGH.to_owned(), high), (LOW.to_owned(), 1 << 30)]);
        let unknown = MemoryQos { allocatable: 0, ..qos(true) };
        assert_eq!(written(unknown, &unlimited), [(LOW.to_owned(), 1 << 30)]);
    }

    #[test]
    fn what_is_kept_for_pods_is_kept_for_those_above_them() {
        let (guaranteed, burstable) = (pod("64Mi", "64Mi", true), pod("16Mi", "", false));
        let best_effort = pod("", "", false);
        let kept = |min: Option<i64>, low: Option<i64>| KeptMemory {
            min: min.map(|n| n * MI),
            low: low.map(|n| n * MI),
        };
        let on = qos(true);
        assert_eq!(on.pod(&guaranteed), kept(Some(64), None));
        assert_eq!(on.pod(&burstable), kept(None, Some(16)));
        assert_eq!(on.pod(&best_effort), KeptMemory::default());
        let all = [&guaranteed, &burstable, &burstable, &best_effort];
        assert_eq!(on.classes(all), (kept(Some(96), None), kept(None, Some(32))));
        let off = qos(false);
        assert_eq!(off.pod(&guaranteed), KeptMemory::default());
        assert_eq!(off.classes(all), (kept(Some(0), None), kept(None, Some(0))), "what was kept is given up");
    }
}
