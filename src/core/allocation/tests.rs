use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::admission::NodeView;
use crate::config::{KubeletConfiguration, SwapBehavior};
use crate::ids::{ContainerId, PodUid};
use crate::observed::{ObservedPod, ObservedResources};
use crate::pod::{PendingReason, PendingResize};
use crate::resources::{HostFacts, HostResources};

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "generation": 3}, "spec": spec})).unwrap()
}

/// One container of this request and limit, each `cpu memory`.
fn one(request: &str, limit: &str) -> Pod {
    pod(json!({"containers": [{"name": "c", "resources": resources(request, limit)}]}))
}

fn resources(request: &str, limit: &str) -> Value {
    let list = |text: &str| match text.split_once(' ') {
        Some((cpu, memory)) => json!({"cpu": cpu, "memory": memory}),
        None => json!({}),
    };
    json!({"requests": list(request), "limits": list(limit)})
}

fn uid(text: &str) -> PodUid {
    PodUid::try_from(text.to_owned()).unwrap()
}

#[test]
fn checkpoints_are_the_kubelets_to_the_checksum() {
    assert_eq!(encode(&BTreeMap::new()), r#"{"data":"{}","checksum":694314937}"#);
    let entries = [(uid("u1"), Arc::new(Allocation::of(&one("100m 64Mi", "200m 128Mi"))))].into();
    let text = encode(&entries);
    let data = r#"{"entries":{"u1":{"ContainerResources":{"c":{"limits":{"cpu":"200m","memory":"128Mi"},"requests":{"cpu":"100m","memory":"64Mi"}}},"PodLevelResources":null}}}"#;
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["data"], data);
    assert_eq!(decode(&text).unwrap(), entries);
}

#[test]
fn a_file_that_cannot_be_believed_says_why() {
    let good = encode(&[(uid("u1"), Arc::default())].into());
    let nulls = |data: &str| {
        let checksum = crate::hash::fnv1a_32(format!("(string){data}").as_bytes());
        json!({"data": data, "checksum": checksum}).to_string()
    };
    for (text, why) in [
        ("", "it is no checkpoint: EOF"),
        ("[]", "it is no checkpoint: invalid"),
        (&good[..good.len() / 2], "it is no checkpoint: EOF"),
        (&good.replace("u1", "u2"), "its checksum is"),
        (&nulls(r#"{"entries":{"../x":{}}}"#), "\"../x\" is no uid of a pod"),
        (&nulls(r#"{"entries":7}"#), "it is no checkpoint: invalid type"),
    ] {
        let said = decode(text).unwrap_err().to_string();
        assert!(said.starts_with(why), "{text:?}: {said}");
    }
    let empty = nulls(r#"{"entries":{"u1":{"ContainerResources":null,"PodLevelResources":null}}}"#);
    assert_eq!(decode(&empty).unwrap(), [(uid("u1"), Arc::default())].into());
    assert_eq!(decode(&nulls(r#"{"entries":null}"#)).unwrap(), BTreeMap::new());
}

#[test]
fn what_was_granted_holds_until_something_else_is_asked_for() {
    let allocated = Allocation::of(&one("1 64Mi", "1 64Mi"));
    let same = Arc::new(one("1000m 65536Ki", "1 64Mi"));
    assert!(Arc::ptr_eq(&allocated.granted(&same), &same), "the same in other words");
    let more = Arc::new(one("2 64Mi", "2 64Mi"));
    let granted = allocated.granted(&more);
    assert_eq!(
        granted.spec.as_ref().unwrap().containers[0].resources,
        one("1 64Mi", "1 64Mi").spec.unwrap().containers[0].resources
    );
    assert_eq!(granted.metadata, more.metadata);
    let another =
        Arc::new(pod(json!({"containers": [{"name": "other", "resources": resources("9 9Gi", "")}]})));
    assert!(Arc::ptr_eq(&allocated.granted(&another), &another), "nothing is known of another container");
}

#[test]
fn a_lost_record_is_read_from_the_status_where_the_spec_was_not_granted() {
    let mut wants = one("8 8Gi", "8 8Gi");
    assert_eq!(Allocation::reported(&wants), Allocation::of(&wants));
    let has = one("1 64Mi", "1 64Mi").spec.unwrap().containers[0].resources.clone();
    wants.status = serde_json::from_value(json!({
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no room", "observedGeneration": 2}],
        "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "allocatedResources": {"cpu": "1", "memory": "64Mi"}, "resources": has}],
    }))
    .unwrap();
    assert_eq!(Allocation::reported(&wants), Allocation::of(&one("1 64Mi", "1 64Mi")));
    let pending = PendingResize { reason: PendingReason::Deferred, message: "no room".into(), generation: 2 };
    assert_eq!(reported_pending(&wants), Some(pending));
}

fn observed(resources: Option<ObservedResources>) -> ObservedPod {
    let mut pod = ObservedPod::empty(uid("u1"), "ns", "p");
    pod.containers.push(crate::observed::ObservedContainer {
        state: ContainerState::Running,
        resources,
        ..crate::observed::tests::container("c")
    });
    pod
}

fn runs_with(cpu_shares: i64, cpu_quota: i64, mib: i64) -> Option<ObservedResources> {
    let memory_limit_bytes = mib << 20;
    let cpu_period = 100_000;
    Some(ObservedResources { cpu_shares, cpu_quota, cpu_period, memory_limit_bytes, ..Default::default() })
}

#[test]
fn what_runs_is_found_out_where_no_record_says_it() {
    let wanted = one("1 128Mi", "1 128Mi");
    let old = Allocation::actuated(&one("1 64Mi", "1 64Mi"));
    let as_granted = Size::of(None, &Allocation::of(&wanted).container_resources["c"]);
    let as_before = Size::of(None, &old.container_resources["c"]);
    for (name, record, real, expected) in [
        ("nothing is known", None, None, as_granted),
        ("the runtime has it", None, runs_with(1024, 100_000, 128), as_granted),
        (
            "the runtime has less",
            None,
            runs_with(1024, 100_000, 64),
            Size { memory_limit: 64 << 20, ..as_granted },
        ),
        ("a record, and a runtime that says nothing", Some(&old), None, as_before),
        ("a record that the runtime agrees with", Some(&old), runs_with(1024, 100_000, 64), as_before),
        ("a record that was not written in time", Some(&old), runs_with(1024, 100_000, 128), as_granted),
    ] {
        let found = Allocation::found(record, &wanted, &observed(real)).unwrap();
        assert_eq!(Size::of(None, &found.container_resources["c"]), expected, "{name}");
    }
    let nothing = ObservedPod::empty(uid("u1"), "ns", "p");
    assert_eq!(Allocation::found(None, &wanted, &nothing), None);
    assert_eq!(Allocation::found(Some(&old), &wanted, &nothing), Some(old));
}

#[test]
fn a_container_without_limits_has_those_of_its_pod() {
    let pod = pod(json!({
        "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
        "containers": [{"name": "c", "resources": resources("1 64Mi", "")}],
    }));
    let actuated = Allocation::actuated(&pod);
    let expected =
        Size { cpu_request: 1000, cpu_limit: 2000, memory_request: 64 << 20, memory_limit: 1 << 30 };
    assert_eq!(Size::of(None, &actuated.container_resources["c"]), expected);
    assert_eq!(verdict(&pod, &pod.spec.as_ref().unwrap().containers[0], Some(&actuated)), Verdict::AsGranted);
}

fn node(cpu: &str, memory: &str) -> NodeView {
    let allocatable = [("cpu", cpu), ("memory", memory), ("pods", "10")];
    NodeView {
        os: "linux".into(),
        allocatable: allocatable.map(|(name, q)| (name.to_owned(), Quantity(q.to_owned()))).into(),
        ..NodeView::default()
    }
}

fn host(limited_swap: bool) -> HostResources {
    let mut config = KubeletConfiguration::default();
    config.fail_swap_on = false;
    if limited_swap {
        config.memory_swap.swap_behavior = SwapBehavior::LimitedSwap;
    }
    let facts = HostFacts {
        cgroup_v2: true,
        swap_controller: true,
        swap_on: true,
        swap_bytes: 1 << 30,
        memory_bytes: 8 << 30,
        allocatable_memory_bytes: 8 << 30,
        page_bytes: 4096,
        page_sizes: vec![],
    };
    HostResources::new(&config, facts).unwrap()
}

#[test]
fn a_resize_is_granted_put_off_or_ruled_out() {
    let small = one("1 1Gi", "1 1Gi");
    let other = one("2 2Gi", "");
    let plain = host(false);
    let swap = host(true);
    let rules = ResizeRules { static_cpu_manager: false, static_memory_manager: false, host: &plain };
    let statics = ResizeRules { static_cpu_manager: true, static_memory_manager: true, host: &plain };
    let swapping = ResizeRules { host: &swap, ..rules };
    let burstable = |memory: &str| one(&format!("1 {memory}"), "2 4Gi");
    let mut restarted = burstable("2Gi");
    restarted.spec.as_mut().unwrap().containers[0].resize_policy =
        serde_json::from_value(json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]))
            .unwrap();
    let room = "OutOf";
    let cases: [(&str, Pod, Pod, ResizeRules<'_>, &str); 10] = [
        ("there is room", one("2 1Gi", "2 1Gi"), small.clone(), rules, ""),
        ("no CPU", one("3 1Gi", "3 1Gi"), small.clone(), rules, room),
        ("no memory", one("1 7Gi", "1 7Gi"), small.clone(), rules, room),
        (
            "a Guaranteed pod beside static CPUs",
            one("2 1Gi", "2 1Gi"),
            small.clone(),
            statics,
            "CPU Manager policy \"static\"",
        ),
        (
            "its memory beside static memory",
            one("1 2Gi", "1 2Gi"),
            small.clone(),
            statics,
            "Memory Manager policy \"Static\"",
        ),
        ("a Burstable pod beside both", burstable("2Gi"), burstable("1Gi"), statics, ""),
        ("its request sets its swap", burstable("2Gi"), burstable("1Gi"), swapping, "containers with swap"),
        (
            "it is restarted for it",
            restarted.clone(),
            {
                let mut r = restarted;
                r.spec.as_mut().unwrap().containers[0].resources =
                    burstable("1Gi").spec.unwrap().containers[0].resources.clone();
                r
            },
            swapping,
            "",
        ),
        ("its CPU does not", one("2 1Gi", "2 4Gi"), one("1 1Gi", "2 4Gi"), swapping, ""),
        ("a quantity that nobody can read", one("x 1Gi", "1 1Gi"), small, rules, "unreadable"),
    ];
    for (name, wanted, allocated, rules, expected) in cases {
        let said = match grant(&wanted, &allocated, &[&other], &node("4", "8Gi"), rules) {
            Ok(()) => String::new(),
            Err(Refused::Infeasible { message, .. }) => message,
            Err(Refused::Deferred { message }) if message.starts_with("Node didn't have enough resource") => {
                room.into()
            }
            Err(Refused::Deferred { message }) => message,
        };
        assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{name}: {said}");
    }
}

#[test]
fn those_who_ask_for_less_come_first_then_the_important_then_who_waited() {
    let at = |n: u64| Some(Timestamp::UNIX_EPOCH + Duration::from_secs(n));
    let priority = |mut pod: Pod, priority: i32| {
        pod.spec.as_mut().unwrap().priority = Some(priority);
        pod
    };
    let (less, more) = (one("500m 1Gi", "500m 1Gi"), one("2 1Gi", "2 1Gi"));
    let has = one("1 1Gi", "1 1Gi");
    let burstable = one("2 1Gi", "3 1Gi");
    let mut all = [
        ("new", rank(&burstable, &has, None)),
        ("later", rank(&burstable, &has, at(2))),
        ("earlier", rank(&burstable, &has, at(1))),
        ("guaranteed", rank(&more, &has, at(9))),
        ("important", rank(&priority(burstable.clone(), 5), &has, at(9))),
        ("less", rank(&less, &has, at(9))),
    ];
    all.sort_by_key(|(_, rank)| *rank);
    assert_eq!(all.map(|(name, _)| name), ["less", "important", "guaranteed", "earlier", "later", "new"]);
}

#[test]
fn requests_for_a_resize_are_counted_by_what_they_change() {
    let found = requested(&one("1 64Mi", "2 64Mi"), &one("2 64Mi", "1 128Mi"));
    assert_eq!(
        found,
        [["memory", "limits", "increase"], ["cpu", "requests", "increase"], ["cpu", "limits", "decrease"]]
    );
    assert_eq!(
        requested(&one("", ""), &one("1 64Mi", "")),
        [["memory", "requests", "add"], ["cpu", "requests", "add"]]
    );
    assert_eq!(requested(&one("1 64Mi", ""), &one("", "")).first(), Some(&["memory", "requests", "remove"]));
}

#[test]
fn events_carry_what_is_asked_for() {
    let event = started(&one("1 64Mi", ""), 4);
    let json = r#"{"containers":[{"name":"c","resources":{"limits":{},"requests":{"cpu":"1","memory":"64Mi"}}}],"generation":4}"#;
    assert_eq!((event.reason, event.message), ("ResizeStarted", format!("Pod resize started: {json}")));
    let why = PendingResize { reason: PendingReason::Deferred, message: "no room".into(), generation: 4 };
    let event = pending(&one("1 64Mi", ""), &why);
    assert!(event.warning && event.reason == "ResizeDeferred");
    assert!(
        event.message.starts_with("Pod resize Deferred: {")
            && event.message.ends_with(r#","error":"no room"}"#)
    );
}

/// What a pod's cgroup and its containers' have, as the kernel holds it.
#[derive(Debug, Clone)]
struct Kernel {
    pod: (i64, i64),
    containers: BTreeMap<String, (i64, i64)>,
}

fn kernel(pod: &Pod) -> Kernel {
    let bounds = crate::resources::pod_cgroup(pod, true, 100_000);
    let of = |c: &Container| {
        let size = Size::of(None, c.resources.as_ref().unwrap());
        (c.name.clone(), (size.memory_limit, size.cpu_limit * 100))
    };
    Kernel {
        pod: (bounds.memory_limit.unwrap(), bounds.cpu_quota.unwrap()),
        containers: pod.spec.iter().flat_map(containers).map(of).collect(),
    }
}

fn any_sizes() -> impl Strategy<Value = Vec<(i64, i64)>> {
    prop::collection::vec((1i64..9, 1i64..9), 3)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Wherever it stops, the containers together have no more than their pod, and the next agent goes on from there to the end.
    #[test]
    fn containers_never_have_more_than_their_pod(before in any_sizes(), after in any_sizes(), stops in 0usize..20) {
        let of = |sizes: &[(i64, i64)]| {
            let each = sizes.iter().enumerate().map(|(n, (cpu, memory))| {
                let size = format!("{cpu} {memory}Mi");
                json!({"name": format!("c{n}"), "resources": resources(&size, &size)})
            });
            pod(json!({"containers": each.collect::<Vec<_>>()}))
        };
        let (old, new) = (of(&before), of(&after));
        let mut state = crate::pod::PodState {
            desired: Some(crate::desired::DesiredPod {
                uid: uid("u1"),
                source: crate::desired::PodSource::Api,
                pod: Arc::new(new.clone()),
            }),
            actuated: Some(Arc::new(Allocation::actuated(&old))),
            ..Default::default()
        };
        let mut kernel_has = kernel(&old);
        let target = kernel(&new);
        let ids: Vec<_> = (0..3).map(|n| (format!("c{n}"), ContainerId::try_from(format!("id{n}")).unwrap())).collect();
        let running: Vec<_> = ids.iter().map(|(name, id)| (name.as_str(), id)).collect();
        let mut left = stops;
        while let Some(due) = resize(&new, state.actuated.as_deref(), &running, &[], state.resize.unfinished) {
            let mut failed = false;
            for step in due.steps {
                if left == 0 {
                    (left, failed) = (1000, true);
                    break;
                }
                left -= 1;
                match &step {
                    ResizeStep::Pod(PodPart::MemoryLimit) => kernel_has.pod.0 = target.pod.0,
                    ResizeStep::Pod(PodPart::CpuLimit) => kernel_has.pod.1 = target.pod.1,
                    ResizeStep::Container { name, part: Part::Memory, .. } => {
                        kernel_has.containers.get_mut(name).unwrap().0 = target.containers[name].0;
                    }
                    ResizeStep::Container { name, part: Part::Cpu, .. } => {
                        kernel_has.containers.get_mut(name).unwrap().1 = target.containers[name].1;
                    }
                    _ => {}
                }
                let sum = kernel_has.containers.values().fold((0, 0), |a, c| (a.0 + c.0, a.1 + c.1));
                prop_assert!(sum.0 <= kernel_has.pod.0 && sum.1 <= kernel_has.pod.1, "{step:?}: {kernel_has:?}");
                let _ = state.apply(crate::pod::ActionOutcome::ResizeStep(step), Timestamp::UNIX_EPOCH);
            }
            let result = if failed { Err("no".to_owned()) } else { Ok(()) };
            let _ = state.apply(crate::pod::ActionOutcome::Resized(result), Timestamp::UNIX_EPOCH);
        }
        prop_assert_eq!(kernel_has.pod, target.pod);
        prop_assert_eq!(&kernel_has.containers, &target.containers);
    }
}
