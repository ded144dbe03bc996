use super::*;

#[test]
fn flags_override_files_and_gates_are_merged() {
    let mut input =
        config("maxPods: 50\nfeatureGates: {A: true, B: true}\nevictionHard: {pid.available: 10%}");
    input.flags = vec![
        flag("max-pods", "7"),
        flag("feature-gates", "B=false,C=true"),
        flag("eviction-hard", "memory.available<1Gi,nodefs.available<5%"),
        flag("cluster-dns", "10.0.0.1,10.0.0.2"),
        flag("register-with-taints", "dedicated=x:NoSchedule,lone:NoExecute"),
        flag("runtime-request-timeout", "15m"),
        flag("cgroups-per-qos", "true"),
        flag("system-reserved", "cpu=1,memory=2Gi"),
        flag("container-runtime-endpoint", "/run/other.sock"),
        flag("manifest-url-header", "a:1,b:2,a:3"),
        flag("reserved-memory", "0:memory=1Gi;1:memory=2Gi"),
    ];
    let settings = load(&input).unwrap();
    let kubelet = &settings.kubelet;
    assert_eq!(kubelet.max_pods, 7);
    let gates: Vec<_> = kubelet.feature_gates.iter().map(|(gate, on)| (gate.as_str(), *on)).collect();
    assert_eq!(gates, [("A", true), ("B", false), ("C", true)]);
    assert_eq!(kubelet.eviction_hard.len(), 2);
    assert_eq!(kubelet.cluster_dns, ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(kubelet.register_with_taints[1].effect, TaintEffect::NoExecute);
    assert_eq!(kubelet.register_with_taints[0].value, "x");
    assert_eq!(kubelet.runtime_request_timeout, Period::minutes(15));
    assert_eq!(settings.container_runtime_endpoint, "unix:///run/other.sock");
    assert_eq!(kubelet.static_pod_url_header["a"], ["1", "3"]);
    assert_eq!(kubelet.reserved_memory[1].numa_node, 1);
}

#[test]
fn a_bad_flag_is_refused_by_its_name() {
    for (name, value, expected) in [
        ("max-pods", "many", "--max-pods: maxPods: \"many\" is not a whole number"),
        ("max-pods", "-1", "--max-pods: maxPods: -1 is too small: this must be 0 or more"),
        ("fail-swap-on", "maybe", "--fail-swap-on: failSwapOn: \"maybe\" is neither true nor false"),
        (
            "system-reserved",
            "cpu",
            "--system-reserved: systemReserved: \"cpu\" is not of the form name=value",
        ),
        (
            "register-with-taints",
            "a=b",
            "--register-with-taints: registerWithTaints: \"a=b\" is not a taint: write key=value:Effect or key:Effect",
        ),
        (
            "register-with-taints",
            "a=b:Sometimes",
            "--register-with-taints: registerWithTaints[0].effect: \"Sometimes\" is not known: use \"NoSchedule\", \
             \"PreferNoSchedule\" or \"NoExecute\"",
        ),
        (
            "sync-frequency",
            "soon",
            "--sync-frequency: syncFrequency: \"soon\" is not a duration: write a number and a unit, such as \
             \"10s\", \"1m30s\" or \"2h\"",
        ),
    ] {
        let flags = vec![flag(name, value)];
        assert_eq!(error(&ConfigInput { flags, hostname: "n".into(), ..Default::default() }), expected);
    }
}

#[test]
fn node_flags_are_checked() {
    type Change = fn(&mut NodeFlags);
    for (case, change, expected) in [
        (
            "a name with a slash",
            (|n| n.hostname_override = Some("a/b".into())) as Change,
            "--hostname-override: ",
        ),
        ("an address that is none", |n| n.node_ip = Some("10.0.0".into()), "--node-ip: \"10.0.0\" is not"),
        (
            "two addresses of a family",
            |n| n.node_ip = Some("10.0.0.1,10.0.0.2".into()),
            "--node-ip: give one",
        ),
        (
            "a reserved label",
            |n| n.node_labels = Some("node-role.kubernetes.io/x=".into()),
            "--node-labels: label",
        ),
        (
            "a label name with a space",
            |n| n.node_labels = Some("a b=c".into()),
            "--node-labels: \"a b\" cannot",
        ),
    ] {
        let mut input = config("");
        change(&mut input.node);
        assert!(error(&input).starts_with(expected), "{case}: {}", error(&input));
    }
    let mut input = config("");
    input.node.node_labels = Some("a=b,topology.kubernetes.io/zone=z1,node.kubernetes.io/x=y".into());
    input.node.node_ip = Some("10.0.0.1,fd00::1".into());
    let settings = load(&input).unwrap();
    assert_eq!(settings.node_labels.len(), 3);
    assert_eq!(settings.node_ips.len(), 2);
}
