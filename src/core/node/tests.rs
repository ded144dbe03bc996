use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use serde_json::json;

use super::*;

fn facts() -> NodeFacts {
    let fine = RuntimeCondition { ready: true, ..RuntimeCondition::default() };
    NodeFacts {
        name: "n1".into(),
        hostname: "n1.example".into(),
        machine: Machine {
            operating_system: "linux".into(),
            architecture: "amd64".into(),
            boot_id: "b".into(),
            ..Machine::default()
        },
        agent_version: "v1.36.4".into(),
        agent_port: 10250,
        capacity: Capacity {
            cpu_millis: 4000,
            memory_bytes: 8 << 30,
            ephemeral_storage_bytes: 100 << 30,
            pods: 110,
            ..Capacity::default()
        },
        runtime: NodeRuntime {
            state: RuntimeState::Answering { runtime: fine.clone(), network: fine },
            version: "containerd://2.1.9".into(),
            ..NodeRuntime::default()
        },
        signals: NodeSignals {
            addresses: vec!["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()],
            ..NodeSignals::default()
        },
        ..NodeFacts::default()
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn condition(status: &NodeStatus, type_: &str) -> (String, String, String) {
    let found =
        status.conditions.iter().flatten().find(|condition| condition.type_ == type_).unwrap().clone();
    (found.status, found.reason.unwrap(), found.message.unwrap())
}

#[test]
fn ready_follows_the_runtime_and_says_why_not() {
    let answering = |runtime: bool, network: bool| RuntimeState::Answering {
        runtime: RuntimeCondition { ready: runtime, reason: "R".into(), message: "r".into() },
        network: RuntimeCondition {
            ready: network,
            reason: "NetworkPluginNotReady".into(),
            message: "cni plugin not initialized".into(),
        },
    };
    type Change = Box<dyn Fn(&mut NodeFacts)>;
    let cases: Vec<(&str, Change, &str, &str)> = vec![
        ("all is well", Box::new(|_| {}), "True", "kubelet is posting ready status"),
        (
            "never heard of the runtime",
            Box::new(|facts| facts.runtime.state = RuntimeState::Unknown),
            "False",
            "container runtime status check may not have completed yet",
        ),
        (
            "the runtime went away",
            Box::new(|facts| facts.runtime.state = RuntimeState::Down { error: "connection refused".into() }),
            "False",
            "container runtime is down: connection refused",
        ),
        (
            "no network yet",
            Box::new(move |facts| facts.runtime.state = answering(true, false)),
            "False",
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized",
        ),
        (
            "two problems at once",
            Box::new(move |facts| facts.runtime.state = answering(false, false)),
            "False",
            "[container runtime not ready: RuntimeReady=false reason:R message:r, container runtime network not ready: \
             NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized]",
        ),
        (
            "no idea how much memory there is",
            Box::new(|facts| facts.capacity.memory_bytes = 0),
            "False",
            "missing node capacity for resources: memory",
        ),
        (
            "shutting down",
            Box::new(|facts| {
                let problem = (SignalSource("shutdown"), "node is shutting down".into());
                facts.signals.problems.extend([problem]);
            }),
            "False",
            "node is shutting down",
        ),
    ];
    for (name, change, status, message) in cases {
        let mut facts = facts();
        change(&mut facts);
        let found = condition(&desired_status(&facts, None, at(0)), "Ready");
        let reason = if status == "True" { "KubeletReady" } else { "KubeletNotReady" };
        assert_eq!(found, (status.into(), reason.into(), message.into()), "{name}");
    }
}

#[test]
fn pressure_is_reported_in_the_words_that_tools_look_for() {
    let mut facts = facts();
    let calm = desired_status(&facts, None, at(0));
    assert_eq!(condition(&calm, "DiskPressure").1, "KubeletHasNoDiskPressure");
    facts.signals.pressure = Pressure { memory: true, disk: true, pid: true };
    let pressed = desired_status(&facts, Some(&calm), at(10));
    let expected = [
        ("MemoryPressure", "KubeletHasInsufficientMemory"),
        ("DiskPressure", "KubeletHasDiskPressure"),
        ("PIDPressure", "KubeletHasInsufficientPID"),
    ];
    for (type_, reason) in expected {
        assert_eq!(
            (condition(&pressed, type_).0.as_str(), condition(&pressed, type_).1.as_str()),
            ("True", reason)
        );
    }
    let events = transitions("n1", calm.conditions.as_ref().unwrap(), pressed.conditions.as_ref().unwrap());
    let reasons: Vec<_> = events.iter().map(|event| event.reason).collect();
    assert_eq!(reasons, ["NodeHasInsufficientMemory", "NodeHasDiskPressure", "NodeHasInsufficientPID"]);
}

#[test]
fn what_parts_of_the_node_report_is_shown_for_as_long_as_they_do() {
    let mut facts = facts();
    facts.signals.problems.insert(SignalSource("storage"), "the disk is read-only".into());
    facts.signals.problems.insert(SignalSource("shutdown"), "node is shutting down".into());
    facts.signals.volumes_in_use.insert("kubernetes.io/csi/example.com^v1".into());
    facts.signals.extended.insert("example.com/fpga".into(), 2);
    let status = desired_status(&facts, None, at(0));
    assert_eq!(condition(&status, "Ready").2, "[node is shutting down, the disk is read-only]");
    assert_eq!(status.volumes_in_use, Some(vec!["kubernetes.io/csi/example.com^v1".to_owned()]));
    assert_eq!(status.capacity.as_ref().unwrap()["example.com/fpga"].0, "2");
    assert_eq!(status.allocatable.as_ref().unwrap()["example.com/fpga"].0, "2");
    facts.signals = NodeSignals::default();
    let declared = status.declared_features.clone().unwrap_or_default();
    assert_eq!(declared, DECLARED_FEATURES);
    let later = desired_status(&facts, Some(&status), at(1));
    assert_eq!(condition(&later, "Ready").0, "True");
    assert_eq!(later.volumes_in_use, None);
}

#[test]
fn a_condition_keeps_the_time_of_its_last_change_and_beats_on() {
    let mut facts = facts();
    let first = desired_status(&facts, None, at(100));
    let second = desired_status(&facts, Some(&first), at(200));
    assert!(!status_changed(&first, &second), "only the heartbeat moved");
    assert_ne!(first, second);
    facts.runtime.state = RuntimeState::Unknown;
    let third = desired_status(&facts, Some(&second), at(300));
    assert!(status_changed(&second, &third));
    let times: Vec<_> = [&first, &second, &third]
        .into_iter()
        .map(|status| {
            let ready =
                status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready").unwrap();
            let second = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
                time.as_ref().unwrap().0.as_second()
            };
            (second(&ready.last_transition_time), second(&ready.last_heartbeat_time))
        })
        .collect();
    assert_eq!(times, [(100, 100), (100, 200), (300, 300)]);
}

#[test]
fn what_others_wrote_into_the_status_stays() {
    let previous: NodeStatus = serde_json::from_value(json!({
        "conditions": [{"type": "NetworkUnavailable", "status": "False"}],
        "capacity": {"example.com/fpga": "2", "hugepages-1Gi": "0", "cpu": "1"},
        "volumesAttached": [{"name": "v", "devicePath": "/dev/v"}],
    }))
    .unwrap();
    let status = desired_status(&facts(), Some(&previous), at(0));
    let types: Vec<_> =
        status.conditions.iter().flatten().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["NetworkUnavailable", "MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    let capacity = status.capacity.unwrap();
    assert_eq!(capacity["example.com/fpga"].0, "2");
    assert_eq!(capacity["cpu"].0, "4");
    assert!(!capacity.contains_key("hugepages-1Gi"), "a page size that is no longer there goes");
    assert!(status.volumes_attached.is_some());
}

#[test]
fn pods_may_use_what_is_left_after_reservations_and_eviction_thresholds() {
    let mut facts = facts();
    facts.capacity.huge_pages.insert(2 << 20, 1 << 30);
    facts.reserved = Reserved {
        system: Amounts { cpu_millis: 100, memory_bytes: 512 << 20, ephemeral_storage_bytes: 1 << 30 },
        agent: Amounts { cpu_millis: 80, memory_bytes: 512 << 20, ephemeral_storage_bytes: 0 },
        eviction: Amounts { cpu_millis: 0, memory_bytes: 100 << 20, ephemeral_storage_bytes: 10 << 30 },
    };
    let status = desired_status(&facts, None, at(0));
    let left = status.allocatable.unwrap();
    let text = |name: &str| left[name].0.as_str();
    assert_eq!(text("cpu"), "3820m");
    assert_eq!(text("memory"), "6044Mi");
    assert_eq!(text("ephemeral-storage"), "89Gi");
    assert_eq!(text("hugepages-2Mi"), "1Gi");
    assert_eq!(text("pods"), "110");
    facts.reserved.system.memory_bytes = 1 << 40;
    let status = desired_status(&facts, None, at(0));
    assert_eq!(status.allocatable.unwrap()["memory"].0, "0", "never below nothing");
}

#[test]
fn quantities_are_written_the_way_the_server_would() {
    for (bytes, expected) in
        [(0, "0"), (1, "1"), (1024, "1Ki"), (1536, "1536"), (3 << 20, "3Mi"), (1 << 60, "1Ei")]
    {
        assert_eq!(binary_quantity(bytes).0, expected);
    }
    assert_eq!(cpu_quantity(2000).0, "2");
    assert_eq!(cpu_quantity(1500).0, "1500m");
}

#[test]
fn a_new_node_carries_its_labels_addresses_and_taints() {
    let mut facts = facts();
    facts.registration.labels.insert("team".into(), "blue".into());
    facts.registration.taints =
        vec![Taint { key: "k".into(), effect: "NoSchedule".into(), ..Taint::default() }];
    let node = desired_node(&facts, None, at(0));
    let labels = node.metadata.labels.clone().unwrap();
    assert_eq!(labels["kubernetes.io/hostname"], "n1.example");
    assert_eq!(labels["kubernetes.io/arch"], "amd64");
    assert_eq!(labels["team"], "blue");
    assert_eq!(node.spec.as_ref().unwrap().taints.as_ref().unwrap().len(), 1);
    let status = node.status.as_ref().unwrap();
    let addresses: Vec<_> =
        status.addresses.iter().flatten().map(|a| (a.type_.as_str(), a.address.as_str())).collect();
    assert_eq!(
        addresses,
        [("InternalIP", "192.0.2.10"), ("InternalIP", "2001:db8::10"), ("Hostname", "n1.example")]
    );
    assert_eq!(status.daemon_endpoints.as_ref().unwrap().kubelet_endpoint.as_ref().unwrap().port, 10250);
}

#[test]
fn labels_that_the_server_would_refuse_are_refused_at_start() {
    let one = |key: &str| BTreeMap::from([(key.to_owned(), String::new())]);
    for good in [
        "team",
        "example.com/team",
        "node.kubernetes.io/pool",
        "x.kubelet.kubernetes.io/y",
        "kubernetes.io/os",
    ] {
        assert_eq!(check_labels(&one(good)), Ok(()), "{good}");
    }
    for bad in [
        "node-role.kubernetes.io/worker",
        "kubernetes.io/team",
        "k8s.io/x",
        "node-restriction.kubernetes.io/z",
    ] {
        let error = check_labels(&one(bad)).unwrap_err();
        assert!(error.to_string().contains(bad), "{error}");
    }
}

#[test]
fn an_existing_node_is_patched_only_where_it_differs() {
    let desired = desired_node(&facts(), None, at(0));
    assert_eq!(reconcile_metadata(&desired, &desired), None);
    let mut existing = desired.clone();
    let labels = existing.metadata.labels.get_or_insert_default();
    labels.insert("theirs".into(), "x".into());
    labels.remove("kubernetes.io/os");
    labels.insert("kubernetes.io/arch".into(), "wrong".into());
    assert_eq!(
        reconcile_metadata(&existing, &desired),
        Some(json!({"metadata": {"labels": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}}}))
    );
}

#[test]
fn a_node_is_written_when_it_differs_or_is_due() {
    let every = SignedDuration::from_secs(300);
    let known = desired_node(&facts(), None, at(0));
    let young = Some(SignedDuration::from_secs(10));
    let due =
        |known: &Node, age| report_is_due(known, &desired_node(&facts(), Some(known), at(10)), age, every);
    assert!(!due(&known, young), "only the heartbeat moved");
    assert!(due(&known, None), "nothing was sent yet");
    assert!(due(&known, Some(every)), "the last report is old");
    let mut other = known.clone();
    other.metadata.labels.get_or_insert_default().remove("kubernetes.io/os");
    assert!(due(&other, young), "somebody took a label away that every node must have");
    let mut other = known.clone();
    other.metadata.labels.get_or_insert_default().remove("kubernetes.io/hostname");
    assert!(!due(&other, young), "other labels are whoever's");
    let mut booted = facts();
    booted.machine.boot_id = "another".into();
    assert!(has_rebooted(&known, &desired_node(&booted, Some(&known), at(10))));
    assert!(!has_rebooted(&known, &desired_node(&facts(), Some(&known), at(10))));
}

#[test]
fn labels_of_the_command_line_win() {
    let mut facts = facts();
    facts.registration.labels.insert("kubernetes.io/hostname".into(), "other".into());
    let labels = own_labels(&facts);
    assert_eq!(labels["kubernetes.io/hostname"], "other");
    assert_eq!(labels["kubernetes.io/os"], "linux");
}

#[test]
fn a_cloud_controller_writes_the_addresses_and_is_told_the_given_ones() {
    let mut facts = facts();
    facts.registration.external_cloud = true;
    let annotation = |facts: &NodeFacts| {
        desired_node(facts, None, at(0))
            .metadata
            .annotations
            .unwrap()
            .remove("alpha.kubernetes.io/provided-node-ip")
    };
    let shown = |facts: &NodeFacts, known: Option<&NodeStatus>| -> Vec<String> {
        let status = desired_status(facts, known, at(0));
        status.addresses.into_iter().flatten().map(|a| format!("{} {}", a.type_, a.address)).collect()
    };
    assert_eq!(annotation(&facts), None);
    assert_eq!(shown(&facts, None), ["Hostname n1.example"], "nobody said which");
    facts.registration.node_ips = vec!["0.0.0.0".parse().unwrap()];
    assert_eq!(annotation(&facts), None, "that is a family");
    assert_eq!(shown(&facts, None).len(), 3, "what was found, until the controller comes");
    facts.registration.node_ips = facts.signals.addresses.clone();
    assert_eq!(annotation(&facts).as_deref(), Some("192.0.2.10,2001:db8::10"));
    let written: NodeStatus =
        serde_json::from_value(json!({"addresses": [{"type": "ExternalIP", "address": "198.51.100.1"}]}))
            .unwrap();
    assert_eq!(shown(&facts, Some(&written)), ["ExternalIP 198.51.100.1"]);
    assert_eq!(
        host_ips(written.addresses.as_deref().unwrap()),
        ["198.51.100.1".parse::<std::net::IpAddr>().unwrap()]
    );

    let with = desired_node(&facts, None, at(0));
    facts.registration.external_cloud = false;
    let without = desired_node(&facts, None, at(0));
    assert_eq!(
        required_metadata(&with, &without),
        Some(json!({"annotations": {"alpha.kubernetes.io/provided-node-ip": null}})),
        "no longer true"
    );
    assert_eq!(shown(&facts, Some(&written)).len(), 3, "without a controller the node's own");
}
