use super::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn text(name: &str, body: &str) -> ConfigText {
    ConfigText { name: name.into(), text: format!("{HEAD}{body}") }
}

fn config(body: &str) -> ConfigInput {
    ConfigInput { config: Some(text("kubelet.yaml", body)), hostname: "node-1".into(), ..Default::default() }
}

fn flag(name: &str, value: &str) -> (&'static ConfigFlag, String) {
    (CONFIG_FLAGS.iter().find(|flag| flag.name == name).unwrap(), value.into())
}

fn error(input: &ConfigInput) -> String {
    load(input).unwrap_err().to_string()
}

#[test]
fn without_any_input_the_node_is_standalone_with_the_kubelets_defaults() {
    let settings = load(&ConfigInput { hostname: "Node-1".into(), ..Default::default() }).unwrap();
    assert!(settings.standalone && !settings.register_node);
    assert_eq!(settings.node_name, "node-1");
    assert_eq!(settings.static_pod_path.unwrap().to_str(), Some(DEFAULT_MANIFEST_DIR));
    assert_eq!(settings.container_runtime_endpoint, "unix:///run/containerd/containerd.sock");
    assert_eq!(settings.image_service_endpoint, "unix:///run/containerd/containerd.sock");
    assert_eq!(settings.root_dir.to_str(), Some("/var/lib/kubelet"));
    assert_eq!(settings.kubelet.max_pods, 110);
    assert_eq!(settings.kubelet.eviction_hard.len(), 5);
    assert_eq!(settings.container_logs_dir.to_str(), Some("/var/log/containers"));
    assert!(settings.not_acted_on.is_empty());
}

/// What kubeadm 1.36 writes to /var/lib/kubelet/config.yaml, zero values included.
#[test]
fn a_file_as_kubeadm_writes_it_loads_and_its_zeroes_mean_the_defaults() {
    let body = r#"
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///var/run/containerd/containerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
"#;
    let mut input = config(body);
    input.node.kubeconfig = Some("/etc/kubernetes/kubelet.conf".into());
    let settings = load(&input).unwrap();
    let kubelet = &settings.kubelet;
    assert_eq!(kubelet.cgroup_driver, CgroupDriver::Systemd);
    assert_eq!(kubelet.sync_frequency, Period::minutes(1));
    assert_eq!(kubelet.runtime_request_timeout, Period::minutes(2));
    assert_eq!(kubelet.authentication.webhook.cache_ttl, Period::minutes(2));
    assert_eq!(kubelet.node_status_update_frequency, Period::seconds(10));
    assert_eq!(settings.static_pod_path.as_ref().unwrap().to_str(), Some("/etc/kubernetes/manifests"));
    assert!(!settings.standalone && settings.register_node);
    assert_eq!(
        settings.not_acted_on,
        ["rotateCertificates (kubelet.yaml:43)", "authentication (kubelet.yaml:4)"]
    );
}

#[test]
fn a_bad_file_is_refused_naming_file_line_field_and_what_would_be_right() {
    for (case, body, expected) in [
        (
            "a misspelt field",
            "maxPod: 5",
            "kubelet.yaml:3: maxPod: there is no such field, did you mean maxPods?",
        ),
        (
            "a field of nobody",
            "frobnicate: 5",
            "kubelet.yaml:3: frobnicate: there is no such field in KubeletConfiguration v1beta1",
        ),
        (
            "an unknown field in a section",
            "port: 10250\nauthentication:\n  x509:\n    caFile: /x",
            "kubelet.yaml:6: authentication.x509.caFile: there is no such field, known here: clientCAFile",
        ),
        (
            "a word that is none of the known",
            "cgroupDriver: sytemd",
            "kubelet.yaml:3: cgroupDriver: \"sytemd\" is not known: use \"cgroupfs\" or \"systemd\"",
        ),
        (
            "a duration without a unit",
            "\nsyncFrequency: 10",
            "kubelet.yaml:4: syncFrequency: found integer `10`, but this must be a duration such as \"10s\", \
             \"1m30s\" or \"2h\"",
        ),
        (
            "a duration in days",
            "syncFrequency: 1d",
            "kubelet.yaml:3: syncFrequency: \"1d\" is not a duration: write a number and a unit, such as \"10s\", \
             \"1m30s\" or \"2h\"",
        ),
        (
            "a quantity that is none",
            "containerLogMaxSize: 10 megs",
            "kubelet.yaml:3: containerLogMaxSize: \"10 megs\" is not a quantity: write a number with an optional \
             suffix, such as \"500m\", \"2\" or \"1Gi\"",
        ),
        (
            "a percentage above a hundred",
            "evictionHard:\n  nodefs.available: 110%",
            "kubelet.yaml:4: evictionHard.nodefs.available: \"110%\" is not a threshold: write a quantity such as \
             \"100Mi\", or a percentage from \"0%\" to \"100%\"",
        ),
        (
            "text for a number",
            "maxPods: many",
            "kubelet.yaml:3: maxPods: found string \"many\", but this must be a whole number that fits 32 bits",
        ),
        (
            "a list for a map",
            "featureGates: [A]",
            "kubelet.yaml:3: featureGates: found sequence, but this must be a mapping",
        ),
        (
            "a number for text in a list",
            "clusterDNS:\n- 10.96.0.10\n- 7",
            "kubelet.yaml:5: clusterDNS[1]: found integer `7`, but this must be text (put it in quotes)",
        ),
        (
            "a port out of range",
            "port: 70000",
            "kubelet.yaml:3: port: 70000 is out of range: this must be from 1 to 65535",
        ),
        (
            "thresholds the wrong way round",
            "imageGCLowThresholdPercent: 90",
            "kubelet.yaml:3: imageGCLowThresholdPercent: 90 must be less than imageGCHighThresholdPercent, which is 85",
        ),
        (
            "a name server that is no address",
            "clusterDNS: [dns.local]",
            "kubelet.yaml:3: clusterDNS: \"dns.local\" is not an IP address",
        ),
        (
            "a runtime that is not a socket",
            "containerRuntimeEndpoint: tcp://1.2.3.4:5",
            "kubelet.yaml:3: containerRuntimeEndpoint: \"tcp://1.2.3.4:5\" is not a unix socket: write \
             \"unix:///run/containerd/containerd.sock\"",
        ),
        (
            "a soft threshold without its grace period",
            "evictionSoft: {memory.available: 1Gi}",
            "kubelet.yaml:3: evictionSoft: memory.available has no grace period in evictionSoftGracePeriod",
        ),
        (
            "a retired mode",
            "runOnce: true",
            "kubelet.yaml:3: runOnce: Kubernetes has retired this mode, leave it out",
        ),
    ] {
        let mut input = config(body);
        input.node.kubeconfig = None;
        let got = error(&input);
        let first = got.lines().next().unwrap_or_default();
        assert_eq!(first, expected, "{case}");
    }
}

#[test]
fn text_that_is_not_yaml_or_not_a_kubelet_configuration_is_refused_with_its_line() {
    for (case, text, expected) in [
        ("half a document", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: [", "kubelet.yaml:2: "),
        ("a tab for indentation", "kind: X\nlogging:\n\tformat: json", "kubelet.yaml:3: "),
        ("a field given twice", "kind: A\nport: 1\nport: 2", "kubelet.yaml:3: "),
        (
            "another kind",
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: Pod",
            "kubelet.yaml:2: kind: this must be KubeletConfiguration",
        ),
        (
            "no version",
            "kind: KubeletConfiguration",
            "kubelet.yaml:1: apiVersion: is missing, write apiVersion: kubelet.config.k8s.io/v1beta1",
        ),
        ("nothing at all", "", "kubelet.yaml:1: "),
        ("a list", "- 1", "kubelet.yaml:1: "),
    ] {
        let config = Some(ConfigText { name: "kubelet.yaml".into(), text: text.into() });
        let got = error(&ConfigInput { config, hostname: "n".into(), ..Default::default() });
        assert!(got.starts_with(expected), "{case}: {got}");
    }
}

#[test]
fn drop_ins_merge_maps_by_key_replace_lists_and_null_takes_back_to_the_default() {
    let mut input = config(
        "maxPods: 50\nport: 12345\nclusterDNS: [10.0.0.1, 10.0.0.2]\n\
         systemReserved: {cpu: 100m, memory: 1Gi}\nauthentication: {webhook: {enabled: false, cacheTTL: 1m}}",
    );
    input.drop_ins = vec![
        text("10-a.conf", "maxPods: 60\nclusterDNS: [10.0.0.3]\nsystemReserved: {cpu: 200m}"),
        text("20-b.conf", "maxPods: 70\nport: null\nauthentication: {webhook: {enabled: true}}"),
    ];
    let kubelet = load(&input).unwrap().kubelet;
    assert_eq!(kubelet.max_pods, 70);
    assert_eq!(kubelet.port, 10250);
    assert_eq!(kubelet.cluster_dns, ["10.0.0.3"]);
    assert_eq!(kubelet.system_reserved["cpu"].as_str(), "200m");
    assert_eq!(kubelet.system_reserved["memory"].as_str(), "1Gi");
    assert!(kubelet.authentication.webhook.enabled);
    assert_eq!(kubelet.authentication.webhook.cache_ttl, Period::minutes(1));
}

#[test]
fn a_drop_in_that_names_one_eviction_signal_keeps_the_other_defaults_but_the_file_itself_does_not() {
    let signal = "evictionHard: {memory.available: 200Mi}";
    let in_file = load(&config(signal)).unwrap().kubelet;
    assert_eq!(in_file.eviction_hard.len(), 1);

    let mut input = config("maxPods: 5");
    input.drop_ins = vec![text("a.conf", signal)];
    let in_drop_in = load(&input).unwrap().kubelet;
    assert_eq!(in_drop_in.eviction_hard.len(), 5);
    assert_eq!(in_drop_in.eviction_hard["memory.available"].as_str(), "200Mi");

    let merged = load(&config(&format!("{signal}\nmergeDefaultEvictionSettings: true"))).unwrap().kubelet;
    assert_eq!(merged.eviction_hard, in_drop_in.eviction_hard);
}

#[test]
fn a_bad_drop_in_is_named_even_where_a_later_one_would_hide_it() {
    let mut input = config("");
    input.drop_ins = vec![text("10.conf", "maxPods: x"), text("20.conf", "maxPods: 5")];
    assert!(error(&input).starts_with("10.conf:3: maxPods: "), "{}", error(&input));
    input.drop_ins = vec![ConfigText { name: "10.conf".into(), text: "maxPods: 5".into() }];
    assert!(error(&input).starts_with("10.conf:1: apiVersion: is missing"), "{}", error(&input));
}

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

#[test]
fn defaults_that_depend_on_other_fields_follow_them() {
    let kubelet = load(&config("nodeStatusUpdateFrequency: 20s\nmaxParallelImagePulls: 4")).unwrap().kubelet;
    assert_eq!(kubelet.node_status_report_frequency, Period::seconds(20));
    assert!(!kubelet.serialize_image_pulls);
    let kubelet = load(&config("podPidsLimit: -7")).unwrap().kubelet;
    assert_eq!((kubelet.pod_pids_limit, kubelet.serialize_image_pulls), (-1, true));
}

#[test]
fn the_effective_configuration_printed_is_a_configuration_that_loads_to_the_same() {
    let first =
        load(&config("maxPods: 50\nsystemReserved: {cpu: 100m}\nsyncFrequency: 90s")).unwrap().kubelet;
    let printed = serde_saphyr::to_string(&first).unwrap();
    let again = ConfigText { name: "printed".into(), text: printed };
    let second =
        load(&ConfigInput { config: Some(again), hostname: "n".into(), ..Default::default() }).unwrap();
    assert_eq!(second.kubelet, first);
}

#[test]
fn json_is_read_as_well() {
    let text = r#"{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","maxPods":12}"#;
    let config = Some(ConfigText { name: "c.json".into(), text: text.into() });
    assert_eq!(
        load(&ConfigInput { config, hostname: "n".into(), ..Default::default() }).unwrap().kubelet.max_pods,
        12
    );
}

#[test]
fn every_flag_stands_for_a_field_and_every_field_not_acted_on_exists() {
    for flag in CONFIG_FLAGS {
        assert!(KubeletConfiguration::FIELDS.contains(&flag.path[0]), "{}", flag.name);
    }
    for field in NOT_ACTED_ON {
        let top = field.split('.').next().unwrap();
        assert!(KubeletConfiguration::FIELDS.contains(&top), "{field}");
    }
}
