//! KubeletConfiguration of kubelet.config.k8s.io/v1beta1, as of Kubernetes 1.36: every field, with its default.

use std::collections::BTreeMap;

use super::fields::section;
use super::*;

section! {
    /// The effective configuration. Field names on disk are part of the Kubernetes API.
    KubeletConfiguration {
        "apiVersion" api_version: String = if_zero("kubelet.config.k8s.io/v1beta1".into()),
        "kind" kind: String = if_zero("KubeletConfiguration".into()),
        "enableServer" enable_server: bool = if_absent(true),
        "staticPodPath" static_pod_path: String = if_zero(String::new()),
        "podLogsDir" pod_logs_dir: String = if_zero("/var/log/pods".into()),
        "syncFrequency" sync_frequency: Period = if_zero(Period::minutes(1)),
        "fileCheckFrequency" file_check_frequency: Period = if_zero(Period::seconds(20)),
        "httpCheckFrequency" http_check_frequency: Period = if_zero(Period::seconds(20)),
        "staticPodURL" static_pod_url: String = if_zero(String::new()),
        "staticPodURLHeader" static_pod_url_header: BTreeMap<String, Vec<String>> = if_absent(BTreeMap::new()),
        "address" address: String = if_zero("0.0.0.0".into()),
        "port" port: i32 = if_zero(10250),
        "readOnlyPort" read_only_port: i32 = if_zero(0),
        "tlsCertFile" tls_cert_file: String = if_zero(String::new()),
        "tlsPrivateKeyFile" tls_private_key_file: String = if_zero(String::new()),
        "tlsCipherSuites" tls_cipher_suites: Vec<String> = if_absent(vec![]),
        "tlsCurvePreferences" tls_curve_preferences: Vec<i32> = if_absent(vec![]),
        "tlsMinVersion" tls_min_version: TlsVersion = if_absent(TlsVersion::Unset),
        "rotateCertificates" rotate_certificates: bool = if_absent(false),
        "serverTLSBootstrap" server_tls_bootstrap: bool = if_absent(false),
        "authentication" authentication: Authentication = if_absent(Authentication::default()),
        "authorization" authorization: Authorization = if_absent(Authorization::default()),
        "registryPullQPS" registry_pull_qps: i32 = if_absent(5),
        "registryBurst" registry_burst: i32 = if_zero(10),
        "imagePullCredentialsVerificationPolicy" image_pull_credentials_verification_policy: ImagePullVerification =
            if_absent(ImagePullVerification::NeverVerifyPreloadedImages),
        "preloadedImagesVerificationAllowlist" preloaded_images_verification_allowlist: Vec<String> = if_absent(vec![]),
        "eventRecordQPS" event_record_qps: i32 = if_absent(50),
        "eventBurst" event_burst: i32 = if_zero(100),
        "enableDebuggingHandlers" enable_debugging_handlers: bool = if_absent(true),
        "enableContentionProfiling" enable_contention_profiling: bool = if_absent(false),
        /// 0 switches the endpoint off.
        "healthzPort" healthz_port: i32 = if_absent(10248),
        "healthzBindAddress" healthz_bind_address: String = if_zero("127.0.0.1".into()),
        "oomScoreAdj" oom_score_adj: i32 = if_absent(-999),
        "clusterDomain" cluster_domain: String = if_zero(String::new()),
        "clusterDNS" cluster_dns: Vec<String> = if_absent(vec![]),
        "streamingConnectionIdleTimeout" streaming_connection_idle_timeout: Period = if_zero(Period::hours(4)),
        "nodeStatusUpdateFrequency" node_status_update_frequency: Period = if_zero(Period::seconds(10)),
        /// Five minutes, unless nodeStatusUpdateFrequency is given: then the same as that.
        "nodeStatusReportFrequency" node_status_report_frequency: Period = if_zero(Period::minutes(5)),
        "nodeLeaseDurationSeconds" node_lease_duration_seconds: i32 = if_zero(40),
        "imageMinimumGCAge" image_minimum_gc_age: Period = if_zero(Period::minutes(2)),
        "imageMaximumGCAge" image_maximum_gc_age: Period = if_zero(Period::ZERO),
        "imageGCHighThresholdPercent" image_gc_high_threshold_percent: i32 = if_absent(85),
        "imageGCLowThresholdPercent" image_gc_low_threshold_percent: i32 = if_absent(80),
        "volumeStatsAggPeriod" volume_stats_agg_period: Period = if_zero(Period::minutes(1)),
        "kubeletCgroups" kubelet_cgroups: String = if_zero(String::new()),
        "systemCgroups" system_cgroups: String = if_zero(String::new()),
        "cgroupRoot" cgroup_root: String = if_zero(String::new()),
        "cgroupsPerQOS" cgroups_per_qos: bool = if_absent(true),
        "cgroupDriver" cgroup_driver: CgroupDriver = if_absent(CgroupDriver::Cgroupfs),
        "cpuManagerPolicy" cpu_manager_policy: CpuManagerPolicy = if_absent(CpuManagerPolicy::None),
        /// None: as the kernel does it by default, which the kubelet decides by cgroup version.
        "singleProcessOOMKill" single_process_oom_kill: Option<bool> = if_absent(None),
        "cpuManagerPolicyOptions" cpu_manager_policy_options: BTreeMap<String, String> = if_absent(BTreeMap::new()),
        "cpuManagerReconcilePeriod" cpu_manager_reconcile_period: Period = if_zero(Period::seconds(10)),
        "memoryManagerPolicy" memory_manager_policy: MemoryManagerPolicy = if_absent(MemoryManagerPolicy::None),
        "topologyManagerPolicy" topology_manager_policy: TopologyManagerPolicy = if_absent(TopologyManagerPolicy::None),
        "topologyManagerScope" topology_manager_scope: TopologyManagerScope = if_absent(TopologyManagerScope::Container),
        "topologyManagerPolicyOptions" topology_manager_policy_options: BTreeMap<String, String> =
            if_absent(BTreeMap::new()),
        "qosReserved" qos_reserved: BTreeMap<String, String> = if_absent(BTreeMap::new()),
        "runtimeRequestTimeout" runtime_request_timeout: Period = if_zero(Period::minutes(2)),
        "hairpinMode" hairpin_mode: HairpinMode = if_absent(HairpinMode::PromiscuousBridge),
        "maxPods" max_pods: i32 = if_zero(110),
        "podCIDR" pod_cidr: String = if_zero(String::new()),
        /// -1: no limit of its own, only the node's.
        "podPidsLimit" pod_pids_limit: i64 = if_absent(-1),
        "resolvConf" resolv_conf: String = if_absent("/etc/resolv.conf".into()),
        "runOnce" run_once: bool = if_absent(false),
        "cpuCFSQuota" cpu_cfs_quota: bool = if_absent(true),
        "cpuCFSQuotaPeriod" cpu_cfs_quota_period: Period = if_absent(Period::millis(100)),
        "nodeStatusMaxImages" node_status_max_images: i32 = if_absent(50),
        "maxOpenFiles" max_open_files: i64 = if_zero(1_000_000),
        "contentType" content_type: String = if_zero("application/vnd.kubernetes.protobuf".into()),
        "kubeAPIQPS" kube_api_qps: i32 = if_absent(50),
        "kubeAPIBurst" kube_api_burst: i32 = if_zero(100),
        /// True, unless maxParallelImagePulls is given and greater than one.
        "serializeImagePulls" serialize_image_pulls: bool = if_absent(true),
        "maxParallelImagePulls" max_parallel_image_pulls: Option<i32> = if_absent(None),
        "evictionHard" eviction_hard: BTreeMap<String, Threshold> = if_absent(default_eviction_hard()),
        "evictionSoft" eviction_soft: BTreeMap<String, Threshold> = if_absent(BTreeMap::new()),
        "evictionSoftGracePeriod" eviction_soft_grace_period: BTreeMap<String, Period> = if_absent(BTreeMap::new()),
        "evictionPressureTransitionPeriod" eviction_pressure_transition_period: Period = if_zero(Period::minutes(5)),
        "evictionMaxPodGracePeriod" eviction_max_pod_grace_period: i32 = if_absent(0),
        "evictionMinimumReclaim" eviction_minimum_reclaim: BTreeMap<String, Threshold> = if_absent(BTreeMap::new()),
        "mergeDefaultEvictionSettings" merge_default_eviction_settings: bool = if_absent(false),
        "podsPerCore" pods_per_core: i32 = if_absent(0),
        "enableControllerAttachDetach" enable_controller_attach_detach: bool = if_absent(true),
        "protectKernelDefaults" protect_kernel_defaults: bool = if_absent(false),
        "makeIPTablesUtilChains" make_iptables_util_chains: bool = if_absent(true),
        "iptablesMasqueradeBit" iptables_masquerade_bit: i32 = if_absent(14),
        "iptablesDropBit" iptables_drop_bit: i32 = if_absent(15),
        "featureGates" feature_gates: BTreeMap<String, bool> = if_absent(BTreeMap::new()),
        "failSwapOn" fail_swap_on: bool = if_absent(true),
        "memorySwap" memory_swap: MemorySwap = if_absent(MemorySwap::default()),
        "containerLogMaxSize" container_log_max_size: Amount = if_zero(Amount::of("10Mi")),
        "containerLogMaxFiles" container_log_max_files: i32 = if_absent(5),
        "containerLogMaxWorkers" container_log_max_workers: i32 = if_absent(1),
        "containerLogMonitorInterval" container_log_monitor_interval: Period = if_absent(Period::seconds(10)),
        "configMapAndSecretChangeDetectionStrategy" config_map_and_secret_change_detection_strategy: ChangeDetection =
            if_absent(ChangeDetection::Watch),
        "systemReserved" system_reserved: BTreeMap<String, Amount> = if_absent(BTreeMap::new()),
        "kubeReserved" kube_reserved: BTreeMap<String, Amount> = if_absent(BTreeMap::new()),
        "reservedSystemCPUs" reserved_system_cpus: String = if_zero(String::new()),
        "showHiddenMetricsForVersion" show_hidden_metrics_for_version: String = if_zero(String::new()),
        "systemReservedCgroup" system_reserved_cgroup: String = if_zero(String::new()),
        "kubeReservedCgroup" kube_reserved_cgroup: String = if_zero(String::new()),
        "enforceNodeAllocatable" enforce_node_allocatable: Vec<Enforcement> = if_absent(vec![Enforcement::Pods]),
        "allowedUnsafeSysctls" allowed_unsafe_sysctls: Vec<String> = if_absent(vec![]),
        "volumePluginDir" volume_plugin_dir: String =
            if_zero("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".into()),
        "providerID" provider_id: String = if_zero(String::new()),
        "kernelMemcgNotification" kernel_memcg_notification: bool = if_absent(false),
        "logging" logging: Logging = if_absent(Logging::default()),
        "enableSystemLogHandler" enable_system_log_handler: bool = if_absent(true),
        "enableSystemLogQuery" enable_system_log_query: bool = if_absent(false),
        "shutdownGracePeriod" shutdown_grace_period: Period = if_zero(Period::ZERO),
        "shutdownGracePeriodCriticalPods" shutdown_grace_period_critical_pods: Period = if_zero(Period::ZERO),
        "shutdownGracePeriodByPodPriority" shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority> =
            if_absent(vec![]),
        "crashLoopBackOff" crash_loop_back_off: CrashLoopBackOff = if_absent(CrashLoopBackOff::default()),
        "reservedMemory" reserved_memory: Vec<MemoryReservation> = if_absent(vec![]),
        "enableProfilingHandler" enable_profiling_handler: bool = if_absent(true),
        "enableDebugFlagsHandler" enable_debug_flags_handler: bool = if_absent(true),
        "seccompDefault" seccomp_default: bool = if_absent(false),
        "memoryThrottlingFactor" memory_throttling_factor: f64 = if_absent(0.9),
        "memoryReservationPolicy" memory_reservation_policy: MemoryReservationPolicy =
            if_absent(MemoryReservationPolicy::None),
        "registerWithTaints" register_with_taints: Vec<Taint> = if_absent(vec![]),
        "registerNode" register_node: bool = if_absent(true),
        "tracing" tracing: Option<Tracing> = if_absent(None),
        "localStorageCapacityIsolation" local_storage_capacity_isolation: bool = if_absent(true),
        "containerRuntimeEndpoint" container_runtime_endpoint: String =
            if_zero("unix:///run/containerd/containerd.sock".into()),
        /// Empty: the same as containerRuntimeEndpoint.
        "imageServiceEndpoint" image_service_endpoint: String = if_zero(String::new()),
        /// The kubelet's default is true. Here a node with cgroup v1 works, so it is accepted and not acted on.
        "failCgroupV1" fail_cgroup_v1: bool = if_absent(true),
        "userNamespaces" user_namespaces: Option<UserNamespaces> = if_absent(None),
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
