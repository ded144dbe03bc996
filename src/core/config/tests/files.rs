use super::*;

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
    assert_eq!(settings.paths.static_pod_path.as_ref().unwrap().to_str(), Some("/etc/kubernetes/manifests"));
    assert!(!settings.standalone && settings.register_node);
    assert_eq!(settings.not_acted_on, ["rotateCertificates (kubelet.yaml:43)"]);
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
            "ids for a pod that are no multiple of the unit",
            "userNamespaces:\n  idsPerPod: 100000",
            "kubelet.yaml:4: userNamespaces.idsPerPod: 100000 must be a multiple of 65536 from 65536 to 4294967295",
        ),
        (
            "no ids for a pod",
            "userNamespaces: {idsPerPod: 0}",
            "kubelet.yaml:3: userNamespaces.idsPerPod: 0 must be a multiple of 65536 from 65536 to 4294967295",
        ),
        (
            "memory that is kept while the feature is off",
            "memoryReservationPolicy: TieredReservation\nfeatureGates: {MemoryQoS: false}",
            "kubelet.yaml:3: memoryReservationPolicy: TieredReservation needs featureGates: {MemoryQoS: true}",
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
            "a back-off that is longer than any",
            "crashLoopBackOff: {maxContainerRestartPeriod: 301s}",
            "kubelet.yaml:3: crashLoopBackOff.maxContainerRestartPeriod: 5m1s is out of range: this must be from 1s to 5m0s",
        ),
        (
            "a back-off that is none",
            "crashLoopBackOff: {maxContainerRestartPeriod: 0s}",
            "kubelet.yaml:3: crashLoopBackOff.maxContainerRestartPeriod: 0s is out of range: this must be from 1s to 5m0s",
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
