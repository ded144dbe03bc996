use super::*;

#[test]
fn without_any_input_the_node_is_standalone_with_the_kubelets_defaults() {
    let settings = load(&ConfigInput { hostname: "Node-1".into(), ..Default::default() }).unwrap();
    assert!(settings.standalone && !settings.register_node);
    assert_eq!(settings.node_name, "node-1");
    assert_eq!(settings.paths.static_pod_path.unwrap().to_str(), Some(DEFAULT_MANIFEST_DIR));
    assert_eq!(settings.container_runtime_endpoint, "unix:///run/containerd/containerd.sock");
    assert_eq!(settings.image_service_endpoint, "unix:///run/containerd/containerd.sock");
    assert_eq!(settings.paths.root_dir.to_str(), Some("/var/lib/kubelet"));
    assert_eq!(settings.kubelet.max_pods, 110);
    assert_eq!(settings.kubelet.eviction_hard.len(), 5);
    assert_eq!(settings.paths.container_logs_dir.to_str(), Some("/var/log/containers"));
    assert!(settings.not_acted_on.is_empty());
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
fn defaults_that_depend_on_other_fields_follow_them() {
    let kubelet = load(&config("nodeStatusUpdateFrequency: 20s\nmaxParallelImagePulls: 4")).unwrap().kubelet;
    assert_eq!(kubelet.node_status_report_frequency, Period::seconds(20));
    assert!(!kubelet.serialize_image_pulls);
    let kubelet = load(&config("podPidsLimit: -7")).unwrap().kubelet;
    assert_eq!((kubelet.pod_pids_limit, kubelet.serialize_image_pulls), (-1, true));
}
