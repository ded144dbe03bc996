//! KubeletConfiguration of kubelet.config.k8s.io/v1beta1, as of Kubernetes 1.36: every field, with its default.

use std::collections::BTreeMap;

use super::checks::*;
use super::fields::{Field, FieldValue, section};
use super::*;

pub(super) const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
pub(super) const KIND: &str = "KubeletConfiguration";
pub(super) const DEFAULT_RUNTIME_ENDPOINT: &str = "unix:///run/containerd/containerd.sock";

section! {
    /// The effective configuration. It has as many fields as the API has: this is its type, name for name.
    KubeletConfiguration {
        pub api_version: String = if_zero(API_VERSION.into()) => "apiVersion";
        pub kind: String = if_zero(KIND.into()) => "kind";
        pub enable_server: bool = if_absent(true) => "enableServer", flag("enable-server", Bool);
        pub static_pod_path: String = if_zero(String::new()) => "staticPodPath",
            flag("pod-manifest-path", Text), check(absolute_or_none);
        pub pod_logs_dir: String = if_zero("/var/log/pods".into()) => "podLogsDir", check(plain_directory);
        pub(super) sync_frequency: Period = if_zero(Period::minutes(1)) => "syncFrequency",
            flag("sync-frequency", Text), check(no_shorter(Period::millis(1)));
        pub file_check_frequency: Period = if_zero(Period::seconds(20)) => "fileCheckFrequency",
            flag("file-check-frequency", Text), check(no_shorter(Period::millis(1)));
        pub(super) http_check_frequency: Period = if_zero(Period::seconds(20)) => "httpCheckFrequency",
            flag("http-check-frequency", Text);
        pub(super) static_pod_url: String = if_zero(String::new()) => "staticPodURL", flag("manifest-url", Text);
        pub(super) static_pod_url_header: BTreeMap<String, Vec<String>> =
            if_absent(BTreeMap::new()) => "staticPodURLHeader",
            flag("manifest-url-header", Headers);
        pub address: String = if_zero("0.0.0.0".into()) => "address", flag("address", Text), check(ip_address);
        pub port: i32 = if_zero(10250) => "port", flag("port", Int), check(between(1, 65535));
        pub read_only_port: i32 = if_zero(0) => "readOnlyPort", flag("read-only-port", Int), check(no_read_only_port);
        pub tls_cert_file: String = if_zero(String::new()) => "tlsCertFile", flag("tls-cert-file", Text);
        pub tls_private_key_file: String = if_zero(String::new()) => "tlsPrivateKeyFile",
            flag("tls-private-key-file", Text);
        pub tls_cipher_suites: Vec<String> = if_absent(vec![]) => "tlsCipherSuites", flag("tls-cipher-suites", List);
        pub(super) tls_curve_preferences: Vec<i32> = if_absent(vec![]) => "tlsCurvePreferences";
        pub tls_min_version: TlsVersion = if_absent(TlsVersion::Unset) => "tlsMinVersion",
            flag("tls-min-version", Text);
        pub(super) rotate_certificates: bool = if_absent(false) => "rotateCertificates",
            flag("rotate-certificates", Bool);
        pub(super) server_tls_bootstrap: bool = if_absent(false) => "serverTLSBootstrap",
            flag("rotate-server-certificates", Bool);
        pub authentication: Authentication = if_absent(Authentication::default()) => "authentication";
        pub authorization: Authorization = if_absent(Authorization::default()) => "authorization";
        pub registry_pull_qps: i32 = if_absent(5) => "registryPullQPS",
            flag("registry-qps", Int), check(at_least(0));
        pub registry_burst: i32 = if_zero(10) => "registryBurst",
            flag("registry-burst", Int), check(at_least(0));
        pub image_pull_credentials_verification_policy: ImagePullVerification =
            if_absent(ImagePullVerification::NeverVerifyPreloadedImages) => "imagePullCredentialsVerificationPolicy";
        pub preloaded_images_verification_allowlist: Vec<String> =
            if_absent(vec![]) => "preloadedImagesVerificationAllowlist", check(allowlist);
        pub event_record_qps: i32 = if_absent(50) => "eventRecordQPS", flag("event-qps", Int), check(at_least(0));
        pub event_burst: i32 = if_zero(100) => "eventBurst", flag("event-burst", Int), check(at_least(0));
        pub enable_debugging_handlers: bool = if_absent(true) => "enableDebuggingHandlers",
            flag("enable-debugging-handlers", Bool);
        pub(super) enable_contention_profiling: bool = if_absent(false) => "enableContentionProfiling",
            flag("contention-profiling", Bool);
        /// 0 switches the endpoint off.
        pub healthz_port: i32 = if_absent(10248) => "healthzPort", flag("healthz-port", Int), check(between(0, 65535));
        pub healthz_bind_address: String = if_zero("127.0.0.1".into()) => "healthzBindAddress",
            flag("healthz-bind-address", Text), check(ip_address);
        pub oom_score_adj: i32 = if_absent(-999) => "oomScoreAdj",
            flag("oom-score-adj", Int), check(between(-1000, 1000));
        pub cluster_domain: String = if_zero(String::new()) => "clusterDomain", flag("cluster-domain", Text);
        pub cluster_dns: Vec<String> = if_absent(vec![]) => "clusterDNS",
            flag("cluster-dns", List), check(ip_addresses);
        pub streaming_connection_idle_timeout: Period = if_zero(Period::hours(4)) => "streamingConnectionIdleTimeout",
            flag("streaming-connection-idle-timeout", Text);
        pub node_status_update_frequency: Period = if_zero(Period::seconds(10)) => "nodeStatusUpdateFrequency",
            flag("node-status-update-frequency", Text), check(no_shorter(Period::millis(1)));
        /// Five minutes, unless nodeStatusUpdateFrequency is given: then the same as that.
        pub node_status_report_frequency: Period = if_zero(Period::minutes(5)) => "nodeStatusReportFrequency",
            check(no_shorter(Period::millis(1)));
        pub node_lease_duration_seconds: i32 = if_zero(40) => "nodeLeaseDurationSeconds", check(at_least(1));
        pub(super) image_minimum_gc_age: Period = if_zero(Period::minutes(2)) => "imageMinimumGCAge",
            flag("minimum-image-ttl-duration", Text), check(no_shorter(Period::ZERO));
        pub(super) image_maximum_gc_age: Period = if_zero(Period::ZERO) => "imageMaximumGCAge",
            check(no_shorter(Period::ZERO));
        pub(super) image_gc_high_threshold_percent: i32 = if_absent(85) => "imageGCHighThresholdPercent",
            flag("image-gc-high-threshold", Int), check(between(0, 100));
        pub(super) image_gc_low_threshold_percent: i32 = if_absent(80) => "imageGCLowThresholdPercent",
            flag("image-gc-low-threshold", Int), check(between(0, 100));
        pub volume_stats_agg_period: Period = if_zero(Period::minutes(1)) => "volumeStatsAggPeriod",
            flag("volume-stats-agg-period", Text);
        pub kubelet_cgroups: String = if_zero(String::new()) => "kubeletCgroups", flag("kubelet-cgroups", Text);
        pub(super) system_cgroups: String = if_zero(String::new()) => "systemCgroups", flag("system-cgroups", Text);
        pub cgroup_root: String = if_zero(String::new()) => "cgroupRoot", flag("cgroup-root", Text);
        pub cgroups_per_qos: bool = if_absent(true) => "cgroupsPerQOS", flag("cgroups-per-qos", Bool);
        pub cgroup_driver: CgroupDriver = if_absent(CgroupDriver::Cgroupfs) => "cgroupDriver",
            flag("cgroup-driver", Text);
        pub cpu_manager_policy: CpuManagerPolicy = if_absent(CpuManagerPolicy::None) => "cpuManagerPolicy",
            flag("cpu-manager-policy", Text);
        /// None: as the kernel does it by default, which the kubelet decides by cgroup version.
        pub single_process_oom_kill: Option<bool> = if_absent(None) => "singleProcessOOMKill";
        pub cpu_manager_policy_options: BTreeMap<String, String> =
            if_absent(BTreeMap::new()) => "cpuManagerPolicyOptions",
            flag("cpu-manager-policy-options", Map);
        pub cpu_manager_reconcile_period: Period = if_zero(Period::seconds(10)) => "cpuManagerReconcilePeriod",
            flag("cpu-manager-reconcile-period", Text);
        pub memory_manager_policy: MemoryManagerPolicy =
            if_absent(MemoryManagerPolicy::None) => "memoryManagerPolicy",
            flag("memory-manager-policy", Text);
        pub topology_manager_policy: TopologyManagerPolicy =
            if_absent(TopologyManagerPolicy::None) => "topologyManagerPolicy",
            flag("topology-manager-policy", Text);
        pub topology_manager_scope: TopologyManagerScope =
            if_absent(TopologyManagerScope::Container) => "topologyManagerScope",
            flag("topology-manager-scope", Text);
        pub topology_manager_policy_options: BTreeMap<String, String> =
            if_absent(BTreeMap::new()) => "topologyManagerPolicyOptions",
            flag("topology-manager-policy-options", Map);
        pub(super) qos_reserved: BTreeMap<String, String> = if_absent(BTreeMap::new()) => "qosReserved",
            flag("qos-reserved", Map);
        pub runtime_request_timeout: Period = if_zero(Period::minutes(2)) => "runtimeRequestTimeout",
            flag("runtime-request-timeout", Text), check(no_shorter(Period::millis(1)));
        pub(super) hairpin_mode: HairpinMode = if_absent(HairpinMode::PromiscuousBridge) => "hairpinMode",
            flag("hairpin-mode", Text);
        pub max_pods: i32 = if_zero(110) => "maxPods", flag("max-pods", Int), check(at_least(0));
        pub(super) pod_cidr: String = if_zero(String::new()) => "podCIDR",
            flag("pod-cidr", Text), check(address_ranges);
        /// -1: no limit of its own, only the node's.
        pub pod_pids_limit: i64 = if_absent(-1) => "podPidsLimit", flag("pod-max-pids", Int);
        pub resolv_conf: String = if_absent("/etc/resolv.conf".into()) => "resolvConf", flag("resolv-conf", Text);
        pub run_once: bool = if_absent(false) => "runOnce", flag("runonce", Bool), check(retired_mode);
        pub cpu_cfs_quota: bool = if_absent(true) => "cpuCFSQuota", flag("cpu-cfs-quota", Bool);
        pub cpu_cfs_quota_period: Period = if_absent(Period::millis(100)) => "cpuCFSQuotaPeriod",
            flag("cpu-cfs-quota-period", Text), check(between(Period::millis(1), Period::seconds(1)));
        pub node_status_max_images: i32 = if_absent(50) => "nodeStatusMaxImages",
            flag("node-status-max-images", Int), check(at_least(-1));
        pub max_open_files: i64 = if_zero(1_000_000) => "maxOpenFiles", flag("max-open-files", Int), check(at_least(0));
        pub(super) content_type: String = if_zero("application/vnd.kubernetes.protobuf".into()) => "contentType",
            flag("kube-api-content-type", Text);
        pub kube_api_qps: i32 = if_absent(50) => "kubeAPIQPS", flag("kube-api-qps", Int), check(at_least(0));
        pub kube_api_burst: i32 = if_zero(100) => "kubeAPIBurst", flag("kube-api-burst", Int), check(at_least(0));
        /// True, unless maxParallelImagePulls is given and greater than one.
        pub serialize_image_pulls: bool = if_absent(true) => "serializeImagePulls",
            flag("serialize-image-pulls", Bool);
        pub max_parallel_image_pulls: Option<i32> = if_absent(None) => "maxParallelImagePulls",
            check(if_given(at_least(1)));
        pub eviction_hard: BTreeMap<String, Threshold> = if_absent(default_eviction_hard()) => "evictionHard",
            flag("eviction-hard", LessMap), check(eviction_signals),
            partly("it only reduces what the node offers to pods; no pod is evicted");
        pub(super) eviction_soft: BTreeMap<String, Threshold> = if_absent(BTreeMap::new()) => "evictionSoft",
            flag("eviction-soft", LessMap), check(eviction_signals);
        pub(super) eviction_soft_grace_period: BTreeMap<String, Period> =
            if_absent(BTreeMap::new()) => "evictionSoftGracePeriod",
            flag("eviction-soft-grace-period", Map), check(grace_periods);
        pub(super) eviction_pressure_transition_period: Period =
            if_zero(Period::minutes(5)) => "evictionPressureTransitionPeriod",
            flag("eviction-pressure-transition-period", Text);
        pub(super) eviction_max_pod_grace_period: i32 = if_absent(0) => "evictionMaxPodGracePeriod",
            flag("eviction-max-pod-grace-period", Int);
        pub(super) eviction_minimum_reclaim: BTreeMap<String, Threshold> =
            if_absent(BTreeMap::new()) => "evictionMinimumReclaim",
            flag("eviction-minimum-reclaim", Map), check(eviction_signals);
        pub merge_default_eviction_settings: bool = if_absent(false) => "mergeDefaultEvictionSettings";
        pub pods_per_core: i32 = if_absent(0) => "podsPerCore", flag("pods-per-core", Int), check(at_least(0));
        pub(super) enable_controller_attach_detach: bool = if_absent(true) => "enableControllerAttachDetach",
            flag("enable-controller-attach-detach", Bool);
        pub(super) protect_kernel_defaults: bool = if_absent(false) => "protectKernelDefaults",
            flag("protect-kernel-defaults", Bool);
        pub make_iptables_util_chains: bool = if_absent(true) => "makeIPTablesUtilChains",
            flag("make-iptables-util-chains", Bool);
        pub(super) iptables_masquerade_bit: i32 = if_absent(14) => "iptablesMasqueradeBit", check(between(0, 31));
        pub(super) iptables_drop_bit: i32 = if_absent(15) => "iptablesDropBit", check(between(0, 31));
        pub feature_gates: BTreeMap<String, bool> = if_absent(BTreeMap::new()) => "featureGates",
            flag("feature-gates", Gates),
            partly("MemoryQoS, KubeletEnsureSecretPulledImages and the gates of the managers' policy options are acted on; everything else is as it is by default");
        pub fail_swap_on: bool = if_absent(true) => "failSwapOn", flag("fail-swap-on", Bool);
        pub memory_swap: MemorySwap = if_absent(MemorySwap::default()) => "memorySwap";
        pub container_log_max_size: QuantityText = if_zero(QuantityText::of("10Mi")) => "containerLogMaxSize",
            flag("container-log-max-size", Text);
        pub container_log_max_files: i32 = if_absent(5) => "containerLogMaxFiles",
            flag("container-log-max-files", Int), check(at_least(2));
        pub container_log_max_workers: i32 = if_absent(1) => "containerLogMaxWorkers", check(at_least(1));
        pub container_log_monitor_interval: Period = if_absent(Period::seconds(10)) => "containerLogMonitorInterval",
            check(no_shorter(Period::seconds(3)));
        pub(super) config_map_and_secret_change_detection_strategy: ChangeDetection =
            if_absent(ChangeDetection::Watch) => "configMapAndSecretChangeDetectionStrategy";
        pub system_reserved: BTreeMap<String, QuantityText> = if_absent(BTreeMap::new()) => "systemReserved",
            flag("system-reserved", Map), check(reserved);
        pub kube_reserved: BTreeMap<String, QuantityText> = if_absent(BTreeMap::new()) => "kubeReserved",
            flag("kube-reserved", Map), check(reserved);
        pub reserved_system_cpus: String = if_zero(String::new()) => "reservedSystemCPUs",
            flag("reserved-cpus", Text), check(cpu_list);
        pub(super) show_hidden_metrics_for_version: String = if_zero(String::new()) => "showHiddenMetricsForVersion";
        pub(super) system_reserved_cgroup: String = if_zero(String::new()) => "systemReservedCgroup",
            flag("system-reserved-cgroup", Text);
        pub(super) kube_reserved_cgroup: String = if_zero(String::new()) => "kubeReservedCgroup",
            flag("kube-reserved-cgroup", Text);
        pub enforce_node_allocatable: Vec<Enforcement> = if_absent(vec![Enforcement::Pods]) => "enforceNodeAllocatable",
            flag("enforce-node-allocatable", List);
        pub allowed_unsafe_sysctls: Vec<String> = if_absent(vec![]) => "allowedUnsafeSysctls",
            flag("allowed-unsafe-sysctls", List);
        pub(super) volume_plugin_dir: String =
            if_zero("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".into()) => "volumePluginDir",
            flag("volume-plugin-dir", Text);
        pub provider_id: String = if_zero(String::new()) => "providerID", flag("provider-id", Text);
        pub(super) kernel_memcg_notification: bool = if_absent(false) => "kernelMemcgNotification",
            flag("kernel-memcg-notification", Bool);
        pub logging: Logging = if_absent(Logging::default()) => "logging";
        pub enable_system_log_handler: bool = if_absent(true) => "enableSystemLogHandler";
        pub enable_system_log_query: bool = if_absent(false) => "enableSystemLogQuery";
        pub(super) shutdown_grace_period: Period = if_zero(Period::ZERO) => "shutdownGracePeriod",
            check(none_or_a_second);
        pub(super) shutdown_grace_period_critical_pods: Period =
            if_zero(Period::ZERO) => "shutdownGracePeriodCriticalPods",
            check(none_or_a_second);
        pub(super) shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority> =
            if_absent(vec![]) => "shutdownGracePeriodByPodPriority";
        pub crash_loop_back_off: CrashLoopBackOff = if_absent(CrashLoopBackOff::default()) => "crashLoopBackOff";
        pub reserved_memory: Vec<MemoryReservation> = if_absent(vec![]) => "reservedMemory",
            flag("reserved-memory", ReservedMemory);
        pub(super) enable_profiling_handler: bool = if_absent(true) => "enableProfilingHandler";
        pub(super) enable_debug_flags_handler: bool = if_absent(true) => "enableDebugFlagsHandler";
        pub seccomp_default: bool = if_absent(false) => "seccompDefault", flag("seccomp-default", Bool);
        pub memory_throttling_factor: f64 = if_absent(0.9) => "memoryThrottlingFactor", check(share);
        pub memory_reservation_policy: MemoryReservationPolicy =
            if_absent(MemoryReservationPolicy::None) => "memoryReservationPolicy";
        pub register_with_taints: Vec<Taint> = if_absent(vec![]) => "registerWithTaints",
            flag("register-with-taints", Taints), check(taints);
        pub register_node: bool = if_absent(true) => "registerNode", flag("register-node", Bool);
        pub(super) tracing: Option<Tracing> = if_absent(None) => "tracing";
        pub(super) local_storage_capacity_isolation: bool = if_absent(true) => "localStorageCapacityIsolation",
            flag("local-storage-capacity-isolation", Bool);
        pub container_runtime_endpoint: String =
            if_zero(DEFAULT_RUNTIME_ENDPOINT.into()) => "containerRuntimeEndpoint",
            flag("container-runtime-endpoint", Text), check(unix_socket);
        /// Empty: the same as containerRuntimeEndpoint.
        pub image_service_endpoint: String = if_zero(String::new()) => "imageServiceEndpoint",
            flag("image-service-endpoint", Text), check(unix_socket);
        /// The kubelet's default is true. Here a node with cgroup v1 works, so it is accepted and not acted on.
        pub(super) fail_cgroup_v1: bool = if_absent(true) => "failCgroupV1", flag("fail-cgroupv1", Bool);
        pub user_namespaces: Option<UserNamespaces> = if_absent(None) => "userNamespaces";
    }
}

impl KubeletConfiguration {
    /// The configuration as others may see it: headers for a manifest server carry its password.
    pub fn masked(&self) -> Self {
        let mut masked = self.clone();
        for values in masked.static_pod_url_header.values_mut() {
            *values = vec!["<masked>".into()];
        }
        masked
    }

    /// Every field, in the order of the API.
    pub fn declared() -> Vec<Field> {
        Self::fields()
    }
}

/// What a hard eviction starts at when the configuration does not say.
pub(super) fn default_eviction_hard() -> BTreeMap<String, Threshold> {
    [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
        ("imagefs.inodesFree", "5%"),
    ]
    .into_iter()
    .map(|(signal, threshold)| (signal.to_owned(), Threshold::of(threshold)))
    .collect()
}
