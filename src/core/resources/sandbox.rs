//! What a runtime is told of a pod as a whole. One that gives each pod a machine of its own makes it this large, and plugins
//! of the runtime plan with it.

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::aggregate::{ResourceList, amounts, limits_without_overhead, requests_without_overhead};
use super::linux::{LinuxResources, cpu_quota, cpu_shares};
use super::quantity::Amount;

/// The containers together.
pub fn sandbox_resources(pod: &Pod, cpu_cfs_quota: bool, period_us: i64) -> LinuxResources {
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    let limits = limits_without_overhead(spec);
    let cpu_limit = of(&limits, "cpu");
    // Without a request the limit stands in for it.
    let cpu_request = requests_without_overhead(spec).get("cpu").copied().unwrap_or(cpu_limit);
    resources(cpu_request, cpu_limit, of(&limits, "memory"), cpu_cfs_quota.then_some(period_us))
}

/// What the runtime itself needs for the pod. It is granted in full, so it is request and limit in one.
pub fn sandbox_overhead(pod: &Pod, cpu_cfs_quota: bool, period_us: i64) -> LinuxResources {
    let Some(overhead) = pod.spec.as_ref().and_then(|s| s.overhead.as_ref()) else {
        return LinuxResources::default();
    };
    let overhead = amounts(Some(overhead));
    let cpu = of(&overhead, "cpu");
    resources(cpu, cpu, of(&overhead, "memory"), cpu_cfs_quota.then_some(period_us))
}

fn resources(cpu_request: Amount, cpu_limit: Amount, memory: Amount, period: Option<i64>) -> LinuxResources {
    LinuxResources {
        cpu_shares: cpu_shares(cpu_request.milli()),
        cpu_quota: period.map_or(0, |period| cpu_quota(cpu_limit.milli(), period)),
        cpu_period: period.unwrap_or(0),
        memory_limit_bytes: memory.value(),
        ..LinuxResources::default()
    }
}

fn of(list: &ResourceList, name: &str) -> Amount {
    list.get(name).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    #[test]
    fn a_sandbox_is_as_large_as_its_containers_and_its_overhead_comes_beside_it() {
        let limited = |requests: Value, limits: Value| json!({"name": "c", "resources": {"requests": requests, "limits": limits}});
        let full = json!({"cpu": "500m", "memory": "64Mi"});
        let overhead = json!({"cpu": "250m", "memory": "120Mi"});
        const MI: i64 = 1 << 20;
        // Shares, quota and memory of the containers, then of the overhead.
        for (name, spec, own, extra) in [
            ("nothing is asked for", json!({"containers": [{"name": "c"}]}), (2, 0, 0), (0, 0, 0)),
            (
                "two containers add up",
                json!({"containers": [limited(full.clone(), full.clone()), limited(full.clone(), full.clone())]}),
                (1024, 100_000, 128 * MI),
                (0, 0, 0),
            ),
            (
                "a limit stands in for its request",
                json!({"containers": [limited(json!({}), full.clone())]}),
                (512, 50_000, 64 * MI),
                (0, 0, 0),
            ),
            (
                "the overhead is not counted twice",
                json!({"containers": [limited(full.clone(), full.clone())], "overhead": overhead}),
                (512, 50_000, 64 * MI),
                (256, 25_000, 120 * MI),
            ),
            (
                "the pod's own word replaces the sum",
                json!({"containers": [limited(full.clone(), full.clone())],
                       "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2", "memory": "1Gi"}}}),
                (2048, 200_000, 1024 * MI),
                (0, 0, 0),
            ),
        ] {
            let pod = pod(spec);
            let shown = |r: LinuxResources| (r.cpu_shares, r.cpu_quota, r.memory_limit_bytes);
            assert_eq!(shown(sandbox_resources(&pod, true, 100_000)), own, "{name}");
            assert_eq!(shown(sandbox_overhead(&pod, true, 100_000)), extra, "{name}");
            let free = sandbox_resources(&pod, false, 100_000);
            assert_eq!((free.cpu_quota, free.cpu_period), (0, 0), "{name}: quotas are off");
        }
    }
}
