use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use super::*;
use crate::qos::QosClass;

const GI: i64 = 1 << 30;

fn pod(spec: Value) -> Pod {
    let mut base = json!({"spec": {"containers": []}});
    base["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(base).unwrap()
}

fn container(name: &str, requests: Value, limits: Value) -> Value {
    json!({"name": name, "resources": {"requests": requests, "limits": limits}})
}

fn sidecar(name: &str, requests: Value, limits: Value) -> Value {
    let mut c = container(name, requests, limits);
    c["restartPolicy"] = json!("Always");
    c
}

#[test]
fn a_pod_needs_the_most_of_its_moments() {
    let cpu = |n: &str| json!({"cpu": n});
    let none = json!({});
    for (what, spec, want) in [
        (
            "main containers add up",
            json!({"containers": [container("a", cpu("1"), none.clone()), container("b", cpu("500m"), none.clone())]}),
            1500,
        ),
        (
            "a larger init container decides",
            json!({"containers": [container("a", cpu("1"), none.clone())], "initContainers": [container("i", cpu("3"), none.clone())]}),
            3000,
        ),
        (
            "a smaller one does not",
            json!({"containers": [container("a", cpu("1"), none.clone())], "initContainers": [container("i", cpu("500m"), none.clone())]}),
            1000,
        ),
        (
            "a sidecar stays beside the main containers",
            json!({"containers": [container("a", cpu("1"), none.clone())], "initContainers": [sidecar("s", cpu("1"), none.clone())]}),
            2000,
        ),
        (
            "an init container runs beside earlier sidecars",
            json!({"containers": [container("a", cpu("100m"), none.clone())], "initContainers": [sidecar("s", cpu("1"), none.clone()), container("i", cpu("2"), none.clone())]}),
            3000,
        ),
        (
            "but not beside later ones",
            json!({"containers": [container("a", cpu("100m"), none.clone())], "initContainers": [container("i", cpu("2"), none.clone()), sidecar("s", cpu("1"), none.clone())]}),
            2000,
        ),
        (
            "overhead comes on top",
            json!({"containers": [container("a", cpu("1"), none.clone())], "overhead": {"cpu": "250m"}}),
            1250,
        ),
        (
            "pod-level requests replace the sum",
            json!({"containers": [container("a", cpu("1"), none.clone())], "resources": {"requests": {"cpu": "4"}}}),
            4000,
        ),
    ] {
        let pod = pod(spec);
        assert_eq!(pod_requests(pod.spec.as_ref().unwrap())["cpu"].milli(), want, "{what}");
    }
}

#[test]
fn overhead_does_not_make_a_limit_out_of_nothing() {
    let pod = pod(
        json!({"containers": [container("a", json!({}), json!({"memory": "1Gi"}))], "overhead": {"cpu": "1", "memory": "1Gi"}}),
    );
    let limits = pod_limits(pod.spec.as_ref().unwrap());
    assert_eq!(limits["memory"].value(), 2 * GI);
    assert!(!limits.contains_key("cpu"));
}

#[test]
fn containers_get_what_the_kernel_understands() {
    let node = NodeCapacity { milli_cpu: 4000, memory_bytes: 16 * GI };
    let of = |spec: Value| {
        let pod = pod(spec);
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        container_resources(&pod, &container, &node, true, 100_000)
    };
    let burstable = of(
        json!({"containers": [container("a", json!({"cpu": "100m", "memory": "1600Mi"}), json!({"cpu": "500m", "memory": "2Gi"}))]}),
    );
    assert_eq!((burstable.cpu_shares, burstable.cpu_quota, burstable.cpu_period), (102, 50_000, 100_000));
    assert_eq!((burstable.memory_limit_bytes, burstable.oom_score_adj), (2 * GI, 903));

    let best_effort = of(json!({"containers": [{"name": "a"}]}));
    assert_eq!((best_effort.cpu_shares, best_effort.cpu_quota, best_effort.memory_limit_bytes), (2, 0, 0));
    assert_eq!(best_effort.oom_score_adj, 1000);

    let limit_only = of(json!({"containers": [container("a", json!({}), json!({"cpu": "1"}))]}));
    assert_eq!(limit_only.cpu_shares, 1024, "the limit stands in for a request");

    let tiny = of(json!({"containers": [container("a", json!({"cpu": "1m"}), json!({"cpu": "1m"}))]}));
    assert_eq!((tiny.cpu_shares, tiny.cpu_quota), (2, 1000), "the kernel's least");

    let pod_level =
        of(json!({"containers": [{"name": "a"}], "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}));
    assert_eq!((pod_level.cpu_quota, pod_level.memory_limit_bytes), (200_000, GI), "the pod's limit holds");

    let huge = of(
        json!({"containers": [container("a", json!({}), json!({"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"}))]}),
    );
    assert_eq!(huge.hugepage_limits, [("1GB".to_owned(), GI as u64), ("2MB".to_owned(), 4 << 20)]);
}

#[test]
fn without_cfs_quota_nobody_is_throttled() {
    let pod = pod(json!({"containers": [container("a", json!({}), json!({"cpu": "1", "memory": "1Gi"}))]}));
    let container: Container = pod.spec.as_ref().unwrap().containers[0].clone();
    let node = NodeCapacity { milli_cpu: 1000, memory_bytes: GI };
    let got = container_resources(&pod, &container, &node, false, 100_000);
    assert_eq!((got.cpu_quota, got.cpu_period), (0, 0));
    assert_eq!(pod_cgroup(&pod, false, 100_000).cpu_quota, Some(-1));
}

#[test]
fn the_kernel_kills_in_the_order_of_the_classes() {
    let none = json!({});
    let mem = |n: &str| json!({"memory": n});
    let full = json!({"cpu": "1", "memory": "1Gi"});
    for (what, spec, name, want) in [
        ("guaranteed last", json!({"containers": [container("a", full.clone(), full.clone())]}), "a", -997),
        ("best effort first", json!({"containers": [{"name": "a"}]}), "a", 1000),
        (
            "node critical last, whatever it asks for",
            json!({"containers": [{"name": "a"}], "priority": 2_000_001_000}),
            "a",
            -997,
        ),
        (
            "burstable by its request",
            json!({"containers": [container("a", mem("4Gi"), none.clone())]}),
            "a",
            750,
        ),
        (
            "a burstable container that asks for nothing",
            json!({"containers": [container("a", mem("4Gi"), none.clone()), {"name": "b"}]}),
            "b",
            999,
        ),
        (
            "never below the burstable floor",
            json!({"containers": [container("a", mem("16Gi"), none.clone())]}),
            "a",
            3,
        ),
        (
            "a sidecar is kept as long as the smallest main container",
            json!({"containers": [container("a", mem("8Gi"), none.clone())], "initContainers": [sidecar("s", mem("1Gi"), none.clone())]}),
            "s",
            500,
        ),
        (
            "a plain init container is not",
            json!({"containers": [container("a", mem("8Gi"), none.clone())], "initContainers": [container("s", mem("4Gi"), none.clone())]}),
            "s",
            750,
        ),
        (
            "unclaimed pod memory is shared",
            json!({"containers": [container("a", mem("4Gi"), none.clone()), {"name": "b"}], "resources": {"requests": {"memory": "8Gi"}}}),
            "b",
            875,
        ),
    ] {
        let pod = pod(spec);
        let spec = pod.spec.as_ref().unwrap();
        let container =
            spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name);
        assert_eq!(oom_score_adj(&pod, container.unwrap(), 16 * GI), want, "{what}");
    }
}

#[test]
fn a_pod_is_bounded_where_all_its_containers_are() {
    let full = json!({"cpu": "1", "memory": "1Gi"});
    let of = |spec: Value| pod_cgroup(&pod(spec), true, 100_000);

    let guaranteed = of(json!({"containers": [container("a", full.clone(), full.clone())]}));
    assert_eq!(
        guaranteed,
        PodCgroupResources {
            cpu_shares: Some(1024),
            cpu_quota: Some(100_000),
            cpu_period: Some(100_000),
            memory_limit: Some(GI),
            hugepages: vec![],
            kept_memory: KeptMemory::default(),
        }
    );
    let open = of(
        json!({"containers": [container("a", full.clone(), full.clone()), container("b", full.clone(), json!({"cpu": "1"}))]}),
    );
    assert_eq!((open.cpu_quota, open.memory_limit), (Some(200_000), None), "b may use any memory");
    let pod_level = of(json!({"containers": [{"name": "a"}], "resources": {"limits": {"memory": "1Gi"}}}));
    assert_eq!((pod_level.cpu_quota, pod_level.memory_limit), (None, Some(GI)));
    let best_effort = of(json!({"containers": [{"name": "a"}]}));
    assert_eq!(best_effort, PodCgroupResources { cpu_shares: Some(2), ..Default::default() });
    let init = of(
        json!({"containers": [container("a", full.clone(), full.clone())], "initContainers": [{"name": "i"}]}),
    );
    assert_eq!(init.memory_limit, None, "the init container is unbounded");
}

#[test]
fn the_burstable_cgroup_weighs_what_its_pods_ask_for() {
    let burstable = pod(json!({"containers": [container("a", json!({"cpu": "1500m"}), json!({}))]}));
    let best_effort = pod(json!({"containers": [{"name": "a"}]}));
    let full = json!({"cpu": "4", "memory": "1Gi"});
    let guaranteed = pod(json!({"containers": [container("a", full.clone(), full)]}));
    let all = [&burstable, &best_effort, &guaranteed];
    assert_eq!(qos_cgroup_shares(QosClass::Burstable, all), 1536);
    assert_eq!(qos_cgroup_shares(QosClass::BestEffort, all), 2);
    assert_eq!(qos_cgroup_shares(QosClass::Burstable, []), 2);
}

#[test]
fn an_unreadable_quantity_is_found_wherever_it_is() {
    for spec in [
        json!({"containers": [container("a", json!({"cpu": "1Q"}), json!({}))]}),
        json!({"containers": [], "initContainers": [container("a", json!({}), json!({"memory": "x"}))]}),
        json!({"containers": [], "overhead": {"cpu": ""}}),
        json!({"containers": [], "resources": {"limits": {"cpu": "-1"}}}),
    ] {
        assert!(check_quantities(&pod(spec.clone())).is_err(), "{spec}");
    }
    assert_eq!(check_quantities(&pod(json!({}))), Ok(()));
}
