use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

fn facts(cgroup_v2: bool) -> HostFacts {
    HostFacts {
        cgroup_v2,
        swap_controller: true,
        swap_on: true,
        swap_bytes: 4 << 30,
        memory_bytes: 16 << 30,
        allocatable_memory_bytes: 15 << 30,
        page_bytes: 4096,
        page_sizes: vec![2 << 20, 1 << 30],
    }
}

fn config(change: impl FnOnce(&mut KubeletConfiguration)) -> KubeletConfiguration {
    let mut config = KubeletConfiguration::default();
    config.fail_swap_on = false;
    change(&mut config);
    config
}

fn pod(change: impl FnOnce(&mut Value)) -> (Pod, Container) {
    let resources = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}});
    let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "c", "resources": resources}]}});
    change(&mut pod);
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let container = pod.spec.as_ref().unwrap().containers[0].clone();
    (pod, container)
}

fn completed(host: &HostResources, (pod, container): &(Pod, Container)) -> LinuxResources {
    let mut resources = LinuxResources {
        memory_limit_bytes: 2 << 30,
        hugepage_limits: vec![("2MB".into(), 8 << 20), ("64KB".into(), 1)],
        ..LinuxResources::default()
    };
    host.complete(pod, container, &mut resources);
    resources
}

#[test]
fn what_cannot_be_had_on_this_machine_is_refused_at_the_start() {
    let limited = |c: &mut KubeletConfiguration| c.memory_swap.swap_behavior = SwapBehavior::LimitedSwap;
    let no_swap = |cgroup_v2| HostFacts { swap_on: false, ..facts(cgroup_v2) };
    for (case, config, facts, refused) in [
        ("swap by default", KubeletConfiguration::default(), facts(true), Some(HostRefusal::SwapOn)),
        ("no swap by default", KubeletConfiguration::default(), no_swap(true), None),
        ("swap that is allowed", config(|_| ()), facts(true), None),
        ("limited swap on v1", config(limited), facts(false), None),
        ("limited swap on v2", config(limited), facts(true), None),
        (
            "all processes on v1",
            config(|c| c.single_process_oom_kill = Some(false)),
            facts(false),
            Some(HostRefusal::KillAll),
        ),
        ("one process on v1", config(|c| c.single_process_oom_kill = Some(true)), facts(false), None),
    ] {
        assert_eq!(HostResources::new(&config, facts).err(), refused, "{case}");
    }
}

#[test]
fn a_container_out_of_memory_ends_as_a_whole_on_v2_unless_configured() {
    for (cgroup_v2, single, expected) in [
        (true, None, Some("1")),
        (true, Some(false), Some("1")),
        (true, Some(true), None),
        (false, None, None),
        (false, Some(true), None),
    ] {
        let host =
            HostResources::new(&config(|c| c.single_process_oom_kill = single), facts(cgroup_v2)).unwrap();
        let got = completed(&host, &pod(|_| ())).unified.remove("memory.oom.group");
        assert_eq!(got.as_deref(), expected, "v2 {cgroup_v2}, single {single:?}");
    }
}

#[test]
fn swap_is_limited_to_the_containers_part_and_off_for_everybody_else() {
    let default = config(|_| ());
    let limited = config(|c| c.memory_swap.swap_behavior = SwapBehavior::LimitedSwap);
    let resources = |requests: &str, limits: &str| json!({"requests": {"memory": requests}, "limits": {"memory": limits}});
    let set = |resources: Value| move |pod: &mut Value| pod["spec"]["containers"][0]["resources"] = resources;
    let cases: Vec<(&str, &KubeletConfiguration, (Pod, Container), &str)> = vec![
        ("by default", &default, pod(|_| ()), "0"),
        ("a sixteenth of the memory", &limited, pod(|_| ()), "268435456"),
        ("rounded down", &limited, pod(set(resources("1", "2Gi"))), "0"),
        ("a third, in floating point", &limited, pod(set(resources("5726623061", "8Gi"))), "1431655765"),
        ("as much as it may use", &limited, pod(set(resources("1Gi", "1Gi"))), "0"),
        ("nothing asked for", &limited, pod(set(json!({}))), "0"),
        (
            "only a limit",
            &limited,
            pod(set(json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": 1}}))),
            "0",
        ),
        ("only a request", &limited, pod(set(json!({"requests": {"memory": "1Gi"}}))), "268435456"),
        ("more than there is", &limited, pod(set(json!({"requests": {"memory": "17Gi"}}))), "0"),
        ("a critical pod", &limited, pod(|p| p["spec"]["priority"] = json!(2_000_000_000)), "0"),
        ("an important one", &limited, pod(|p| p["spec"]["priority"] = json!(1_999_999_999)), "268435456"),
        (
            "a static pod",
            &limited,
            pod(|p| p["metadata"]["annotations"] = json!({"kubernetes.io/config.source": "file"})),
            "0",
        ),
    ];
    for (case, config, pod, expected) in cases {
        let host = HostResources::new(config, facts(true)).unwrap();
        let got = completed(&host, &pod);
        assert_eq!(got.unified.get("memory.swap.max").map(String::as_str), Some(expected), "{case}");
        assert_eq!(got.memory_swap_limit_bytes, 0, "{case}");
    }
}

#[test]
fn on_v1_memory_and_swap_together_are_the_memory_and_nothing_else_is_set() {
    let all = config(|c| {
        c.memory_swap.swap_behavior = SwapBehavior::LimitedSwap;
        c.feature_gates.insert("MemoryQoS".into(), true);
    });
    for config in [config(|_| ()), all.clone()] {
        let host = HostResources::new(&config, facts(false)).unwrap();
        let got = completed(&host, &pod(|_| ()));
        assert_eq!((got.memory_swap_limit_bytes, got.unified), (2 << 30, BTreeMap::new()));
        let (pod, _) = pod(|_| ());
        assert_eq!(host.classes([&pod].into_iter()).all_pods, KeptMemory::default());
    }
    let named = ["memorySwap.swapBehavior LimitedSwap", "featureGates MemoryQoS"];
    assert_eq!(HostResources::without_effect(&all, false), named);
    assert!(HostResources::without_effect(&all, true).is_empty());
    assert!(HostResources::without_effect(&KubeletConfiguration::default(), false).is_empty());
}

#[test]
fn memory_qos_reaches_containers_pods_and_classes() {
    let tiered = config(|c| {
        c.feature_gates.insert("MemoryQoS".into(), true);
        c.memory_reservation_policy = crate::config::MemoryReservationPolicy::TieredReservation;
    });
    let host = HostResources::new(&tiered, facts(true)).unwrap();
    let (pod, container) = pod(|_| ());
    let unified = completed(&host, &(pod.clone(), container)).unified;
    let gi = (1u64 << 30).to_string();
    assert_eq!(unified.get("memory.low"), Some(&gi));
    assert_eq!(unified.get("memory.swap.max").map(String::as_str), Some("0"), "beside the others");
    let mut own = PodCgroupResources { hugepages: vec![("64KB".into(), 1)], ..Default::default() };
    host.complete_pod(&pod, &mut own);
    assert_eq!(own.kept_memory.low, Some(1 << 30));
    assert_eq!(own.hugepages, [("2MB".to_owned(), 0), ("1GB".to_owned(), 0)]);
    let classes = host.classes([&pod, &pod].into_iter());
    assert_eq!((classes.all_pods.min, classes.burstable.low), (Some(2 << 30), Some(2 << 30)));
    let off = HostResources::new(&config(|_| ()), facts(true)).unwrap();
    assert_eq!(off.classes([&pod].into_iter()), QosCgroups { burstable_shares: 2, ..Default::default() });
}

#[test]
fn a_sandbox_that_the_runtime_is_told_of_ends_as_a_whole_too() {
    let host = HostResources::new(&config(|_| ()), facts(true)).unwrap();
    let told = LinuxResources { cpu_shares: 2, ..LinuxResources::default() };
    let unified = host.complete_sandbox(told).unified;
    assert_eq!(unified.get("memory.oom.group").map(String::as_str), Some("1"));
    assert_eq!(host.complete_sandbox(LinuxResources::default()), LinuxResources::default());
}

#[test]
fn without_a_swap_controller_nothing_is_said_of_swap() {
    for cgroup_v2 in [true, false] {
        let facts = HostFacts { swap_controller: false, ..facts(cgroup_v2) };
        let got = completed(&HostResources::new(&config(|_| ()), facts).unwrap(), &pod(|_| ()));
        assert_eq!((got.memory_swap_limit_bytes, got.unified.get("memory.swap.max")), (0, None));
    }
}

#[test]
fn every_page_size_of_the_machine_has_a_limit_and_no_other() {
    let host = HostResources::new(&config(|_| ()), facts(true)).unwrap();
    let got = completed(&host, &pod(|_| ())).hugepage_limits;
    assert_eq!(got, [("2MB".to_owned(), 8 << 20), ("1GB".to_owned(), 0)]);
}
