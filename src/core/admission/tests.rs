use serde_json::{Value, json};

use super::*;

fn pod(spec: Value) -> Pod {
    let mut base = json!({
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"containers": [{"name": "c"}], "nodeName": "n1"},
    });
    base["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(base).unwrap()
}

fn asks(resource: &str, amount: &str) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": {resource: amount}}}]})
}

fn listens(ip: &str, protocol: &str, port: i32) -> Value {
    json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": port, "hostIP": ip, "protocol": protocol}]}]})
}

fn affinity(key: &str, operator: &str, values: Value) -> Value {
    let kind = if key == "metadata.name" { "matchFields" } else { "matchExpressions" };
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "never", "operator": "Exists"}]},
        {kind: [{"key": key, "operator": operator, "values": values}]},
    ]}}}})
}

fn sysctl(name: &str) -> Value {
    json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}})
}

fn node() -> NodeView {
    NodeView {
        name: "n1".into(),
        labels: [("zone", "a"), ("cores", "8")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        taints: vec![],
        allocatable: serde_json::from_value(
            json!({"cpu": "2", "memory": "4Gi", "pods": "3", "ephemeral-storage": "10Gi", "example.com/gpu": "1"}),
        )
        .unwrap(),
        os: "linux".into(),
        allowed_unsafe_sysctls: vec!["kernel.msg*".into(), "net.core.somaxconn".into(), "vm.swappiness".into()],
        supplemental_groups_policy: false,
        app_armor: true,
    }
}

/// A pod of another name that uses half of the cpu and port 80 on one address.
fn neighbour() -> Pod {
    let mut spec = listens("192.0.2.1", "TCP", 80);
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    pod(spec)
}

#[test]
fn a_node_takes_what_fits_and_says_why_not() {
    for (what, spec, want) in [
        ("an ordinary pod", json!({}), ""),
        ("cpu that is left", asks("cpu", "1"), ""),
        (
            "cpu that is not",
            asks("cpu", "1001m"),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 1001, used: 1000, capacity: 2000",
        ),
        (
            "too much memory",
            asks("memory", "5Gi"),
            "OutOfmemory: Node didn't have enough resource: memory, requested: 5368709120, used: 0, capacity: 4294967296",
        ),
        ("too much storage", asks("ephemeral-storage", "11Gi"), "OutOfephemeral-storage: "),
        ("a device too many", asks("example.com/gpu", "2"), "OutOfexample.com/gpu: "),
        ("a device that the node does not know", asks("example.com/other", "2"), ""),
        ("huge pages that the node does not have", asks("hugepages-2Mi", "2Mi"), "OutOfhugepages-2Mi: "),
        ("an unreadable quantity", asks("cpu", "one"), "UnexpectedAdmissionError: "),
        ("a label of the node", json!({"nodeSelector": {"zone": "a"}}), ""),
        (
            "a label of another node",
            json!({"nodeSelector": {"zone": "b"}}),
            "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        ("affinity In", affinity("zone", "In", json!(["b", "a"])), ""),
        ("affinity NotIn", affinity("zone", "NotIn", json!(["a"])), "NodeAffinity: "),
        ("affinity DoesNotExist", affinity("gone", "DoesNotExist", json!(null)), ""),
        ("affinity Gt", affinity("cores", "Gt", json!(["4"])), ""),
        ("affinity Lt", affinity("cores", "Lt", json!(["4"])), "NodeAffinity: "),
        ("affinity by name", affinity("metadata.name", "In", json!(["n1"])), ""),
        (
            "affinity with a term that is empty",
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}}),
            "NodeAffinity: ",
        ),
        (
            "another node's pod",
            json!({"nodeName": "n2"}),
            "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name",
        ),
        ("a port on another address", listens("192.0.2.2", "TCP", 80), ""),
        ("a port of another protocol", listens("192.0.2.1", "UDP", 80), ""),
        (
            "a port that is taken",
            listens("192.0.2.1", "TCP", 80),
            "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ),
        ("a port on all addresses", listens("", "", 80), "NodePorts: "),
        (
            "another system",
            json!({"os": {"name": "windows"}}),
            "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
        ),
        (
            "exactly the groups given",
            json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}),
            "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        ("a safe sysctl", sysctl("net.ipv4.tcp_syncookies"), ""),
        ("a safe sysctl with slashes", sysctl("net/ipv4/tcp_syncookies"), ""),
        ("an allowed sysctl", sysctl("net.core.somaxconn"), ""),
        ("an allowed pattern", sysctl("kernel.msgmax"), ""),
        (
            "a sysctl that nobody allowed",
            sysctl("kernel.shmmax"),
            "SysctlForbidden: forbidden sysctl: \"kernel.shmmax\" not allowlisted",
        ),
        ("a sysctl of the whole machine, allowed by mistake", sysctl("vm.swappiness"), "SysctlForbidden: "),
        (
            "a net sysctl on the host's network",
            json!({"hostNetwork": true, "securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}}),
            "SysctlForbidden: forbidden sysctl: \"net.core.somaxconn\" not allowed with host Net enabled",
        ),
    ] {
        let got =
            admit(&pod(spec), &[&neighbour()], &node()).err().map(|r| r.to_string()).unwrap_or_default();
        assert!(got.starts_with(want) && got.is_empty() == want.is_empty(), "{what}: {got:?}");
    }
}

#[test]
fn finished_pods_take_no_room() {
    let mut done = neighbour();
    done.status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
    assert_eq!(admit(&pod(asks("cpu", "2")), &[&done], &node()), Ok(()));
    let other = pod(json!({}));
    let full = admit(&pod(json!({})), &[&other, &other, &other], &node());
    assert!(
        full.is_err_and(
            |r| r.reason == "OutOfpods" && r.message.contains("requested: 1, used: 3, capacity: 3")
        )
    );
}

#[test]
fn what_the_object_says_goes_over_what_the_node_knows_by_itself() {
    let mut object = NodeObject::default();
    let wants = pod(json!({"nodeSelector": {"disk": "fast"}}));
    let verdict = |object: &NodeObject| admit(&wants, &[], &node().with_object(object)).map_err(|r| r.reason);
    assert_eq!(verdict(&object), Err("NodeAffinity".into()));
    let state = |version: &str, spec: Value| {
        serde_json::from_value(json!({
            "metadata": {"uid": "u", "resourceVersion": version, "labels": {"disk": "fast"}}, "spec": spec,
            "status": {"allocatable": {"example.com/fpga": "1", "cpu": "1m"}},
        }))
        .unwrap()
    };
    object.seen(state("1", json!({"taints": [{"key": "k", "effect": "NoExecute"}]})));
    assert_eq!(verdict(&object), Err("TaintToleration".into()));
    object.seen(state("2", json!({})));
    assert_eq!(verdict(&object), Ok(()));
    let view = node().with_object(&object);
    assert_eq!(view.allocatable["cpu"].0, "2", "how much there is of its own is for the node to say");
    assert!(admit(&pod(asks("example.com/fpga", "2")), &[], &view).is_err_and(|r| !r.rests_on_object()));
    assert!(
        Rejection::predicate(AFFINITY, "").rests_on_object()
            && Rejection::predicate(TAINT, "").rests_on_object()
    );
}

#[test]
fn a_profile_that_the_kernel_cannot_enforce_keeps_a_pod_away() {
    let of_pod = |profile: Value| json!({"securityContext": {"appArmorProfile": profile}});
    let of_container = |profile: Value| json!({"initContainers": [{"name": "i", "securityContext": {"appArmorProfile": profile}}]});
    let disabled = "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    let unnamed =
        "AppArmor: Cannot enforce AppArmor: a profile of type Localhost must be named in localhostProfile";
    for (what, spec, with, without) in [
        ("none", json!({}), "", ""),
        ("unconfined", of_pod(json!({"type": "Unconfined"})), "", ""),
        ("the runtime's", of_pod(json!({"type": "RuntimeDefault"})), "", disabled),
        ("a container's", of_container(json!({"type": "Localhost", "localhostProfile": "p"})), "", disabled),
        (
            "one without a name",
            of_container(json!({"type": "Localhost", "localhostProfile": " "})),
            unnamed,
            disabled,
        ),
    ] {
        for (app_armor, want) in [(true, with), (false, without)] {
            let got = admit(&pod(spec.clone()), &[], &NodeView { app_armor, ..node() });
            let got = got.err().map(|r| r.to_string()).unwrap_or_default();
            assert_eq!(got, want, "{what}, enabled: {app_armor}");
        }
    }
    let annotated = |value: &str, app_armor: bool| {
        let mut pod = pod(json!({}));
        let key = "container.apparmor.security.beta.kubernetes.io/c".to_owned();
        pod.metadata.annotations = Some([(key, value.to_owned())].into());
        admit(&pod, &[], &NodeView { app_armor, ..node() }).is_ok()
    };
    let mut ran = pod(json!({"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}));
    for (phase, taken) in [("Pending", false), ("Running", true)] {
        ran.status = serde_json::from_value(json!({"phase": phase})).unwrap();
        let got = admit(&ran, &[], &NodeView { app_armor: false, ..node() });
        assert_eq!(got.is_ok(), taken, "{phase}");
    }
    assert!(annotated("unconfined", false) && annotated("localhost/p", true));
    assert!(!annotated("runtime/default", false) && !annotated("localhost/", true));
}

#[test]
fn a_pod_that_needs_what_the_node_does_not_declare_is_refused() {
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}});
    let container = json!({"name": "c", "restartPolicyRules": [rule]});
    let missing = "PodFeatureUnsupported: Pod requires node features that are not available: UserNamespacesHostNetworkSupport";
    for (what, spec, want) in [
        ("restarts of all containers", json!({"containers": [container]}), ""),
        ("users of its own", json!({"hostUsers": false}), ""),
        ("the host's network", json!({"hostUsers": true, "hostNetwork": true}), ""),
        ("its own users on the host's network", json!({"hostUsers": false, "hostNetwork": true}), missing),
    ] {
        let got = admit(&pod(spec), &[], &node()).err().map(|r| r.to_string()).unwrap_or_default();
        assert_eq!(got, want, "{what}");
    }
    assert!(DECLARED_FEATURES.is_sorted());
}

#[test]
fn only_a_taint_that_evicts_keeps_a_pod_away() {
    let taint =
        |effect: &str| serde_json::from_value(json!({"key": "k", "value": "v", "effect": effect})).unwrap();
    let node = NodeView { taints: vec![taint("NoSchedule"), taint("NoExecute")], ..node() };
    let refused = |tolerations: Value| admit(&pod(json!({"tolerations": tolerations})), &[], &node).is_err();
    for (what, tolerations, want) in [
        ("none", json!([]), true),
        ("all", json!([{"operator": "Exists"}]), false),
        ("the key", json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]), false),
        ("key and value", json!([{"key": "k", "value": "v"}]), false),
        ("another value", json!([{"key": "k", "value": "w"}]), true),
        ("another effect", json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]), true),
    ] {
        assert_eq!(refused(tolerations), want, "{what}");
    }
    let mut manifest = pod(json!({}));
    manifest.metadata.annotations =
        Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    assert_eq!(admit(&manifest, &[], &node), Ok(()), "a manifest's pod has nowhere else to go");
}
