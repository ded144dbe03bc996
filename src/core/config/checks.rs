//! Values that are each of the right type but wrong for their field, or wrong together.

use std::net::IpAddr;

use super::{Enforcement, KubeletConfiguration, Period};

const SIGNALS: [&str; 9] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
    "allocatableMemory.available",
];

type Problem = (&'static str, String);

/// Every problem with its field's path.
pub(super) fn check(c: &KubeletConfiguration) -> Vec<Problem> {
    let mut found = vec![];
    ranges(c, &mut found);
    times(c, &mut found);
    addresses(c, &mut found);
    eviction(c, &mut found);
    allocatable(c, &mut found);
    names(c, &mut found);
    found
}

fn ranges(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    for (field, value, low, high) in [
        ("port", i64::from(c.port), 1, 65535),
        ("healthzPort", c.healthz_port.into(), 0, 65535),
        ("imageGCHighThresholdPercent", c.image_gc_high_threshold_percent.into(), 0, 100),
        ("imageGCLowThresholdPercent", c.image_gc_low_threshold_percent.into(), 0, 100),
        ("iptablesMasqueradeBit", c.iptables_masquerade_bit.into(), 0, 31),
        ("iptablesDropBit", c.iptables_drop_bit.into(), 0, 31),
        ("oomScoreAdj", c.oom_score_adj.into(), -1000, 1000),
    ] {
        if !(low..=high).contains(&value) {
            found.push((field, format!("{value} is out of range: this must be from {low} to {high}")));
        }
    }
    for (field, value, least) in [
        ("nodeLeaseDurationSeconds", i64::from(c.node_lease_duration_seconds), 1),
        ("eventBurst", c.event_burst.into(), 0),
        ("eventRecordQPS", c.event_record_qps.into(), 0),
        ("kubeAPIBurst", c.kube_api_burst.into(), 0),
        ("kubeAPIQPS", c.kube_api_qps.into(), 0),
        ("nodeStatusMaxImages", c.node_status_max_images.into(), -1),
        ("maxOpenFiles", c.max_open_files, 0),
        ("maxPods", c.max_pods.into(), 0),
        ("podsPerCore", c.pods_per_core.into(), 0),
        ("registryBurst", c.registry_burst.into(), 0),
        ("registryPullQPS", c.registry_pull_qps.into(), 0),
        ("maxParallelImagePulls", c.max_parallel_image_pulls.unwrap_or(1).into(), 1),
        ("containerLogMaxWorkers", c.container_log_max_workers.into(), 1),
        ("containerLogMaxFiles", c.container_log_max_files.into(), 2),
    ] {
        if value < least {
            found.push((field, format!("{value} is too small: this must be {least} or more")));
        }
    }
    if c.image_gc_low_threshold_percent >= c.image_gc_high_threshold_percent {
        found.push((
            "imageGCLowThresholdPercent",
            format!(
                "{} must be less than imageGCHighThresholdPercent, which is {}",
                c.image_gc_low_threshold_percent, c.image_gc_high_threshold_percent
            ),
        ));
    }
    if c.serialize_image_pulls && c.max_parallel_image_pulls.is_some_and(|pulls| pulls > 1) {
        found.push(("maxParallelImagePulls", "more than 1 needs serializeImagePulls: false".into()));
    }
    if !(c.memory_throttling_factor > 0.0 && c.memory_throttling_factor <= 1.0) {
        found.push((
            "memoryThrottlingFactor",
            format!(
                "{} is out of range: this must be greater than 0 and at most 1",
                c.memory_throttling_factor
            ),
        ));
    }
    if c.read_only_port != 0 {
        found.push((
            "readOnlyPort",
            format!("{} would serve pods to anybody who asks: there is no read-only port here, leave it out or give 0", c.read_only_port),
        ));
    }
    if c.run_once {
        found.push(("runOnce", "Kubernetes has retired this mode, leave it out".into()));
    }
}

fn times(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    for (field, value, low, high) in [
        ("cpuCFSQuotaPeriod", c.cpu_cfs_quota_period, Period::millis(1), Period::seconds(1)),
        (
            "crashLoopBackOff.maxContainerRestartPeriod",
            c.crash_loop_back_off.max_container_restart_period.unwrap_or(Period::minutes(5)),
            Period::seconds(1),
            Period::minutes(5),
        ),
    ] {
        if value < low || value > high {
            found.push((field, format!("{value} is out of range: this must be from {low} to {high}")));
        }
    }
    for (field, value, least) in [
        ("containerLogMonitorInterval", c.container_log_monitor_interval, Period::seconds(3)),
        ("imageMinimumGCAge", c.image_minimum_gc_age, Period::ZERO),
        ("imageMaximumGCAge", c.image_maximum_gc_age, Period::ZERO),
        ("runtimeRequestTimeout", c.runtime_request_timeout, Period::millis(1)),
        ("nodeStatusUpdateFrequency", c.node_status_update_frequency, Period::millis(1)),
        ("nodeStatusReportFrequency", c.node_status_report_frequency, Period::millis(1)),
        ("syncFrequency", c.sync_frequency, Period::millis(1)),
        ("fileCheckFrequency", c.file_check_frequency, Period::millis(1)),
        ("logging.flushFrequency", c.logging.flush_frequency.0, Period::nanos(1)),
    ] {
        if value < least {
            found.push((field, format!("{value} is too short: this must be {least} or more")));
        }
    }
    for (field, value) in [
        ("shutdownGracePeriod", c.shutdown_grace_period),
        ("shutdownGracePeriodCriticalPods", c.shutdown_grace_period_critical_pods),
    ] {
        if value != Period::ZERO && value < Period::seconds(1) {
            found.push((field, format!("{value} is too short: this must be 0s, or 1s or more")));
        }
    }
    if c.shutdown_grace_period_critical_pods > c.shutdown_grace_period {
        found.push((
            "shutdownGracePeriodCriticalPods",
            format!("must not be longer than shutdownGracePeriod, which is {}", c.shutdown_grace_period),
        ));
    }
    if !c.shutdown_grace_period_by_pod_priority.is_empty() && c.shutdown_grace_period != Period::ZERO {
        found.push((
            "shutdownGracePeriodByPodPriority",
            "cannot be used together with shutdownGracePeriod".into(),
        ));
    }
    if c.image_maximum_gc_age > Period::ZERO && c.image_maximum_gc_age <= c.image_minimum_gc_age {
        found.push((
            "imageMaximumGCAge",
            format!("must be longer than imageMinimumGCAge, which is {}", c.image_minimum_gc_age),
        ));
    }
}

fn addresses(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    let single = [("address", &c.address), ("healthzBindAddress", &c.healthz_bind_address)];
    let servers = c.cluster_dns.iter().map(|server| ("clusterDNS", server));
    for (field, address) in single.into_iter().chain(servers) {
        if address.parse::<IpAddr>().is_err() {
            found.push((field, format!("{address:?} is not an IP address")));
        }
    }
    for cidr in c.pod_cidr.split(',').filter(|cidr| !cidr.is_empty()) {
        let good = cidr.split_once('/').is_some_and(|(address, length)| {
            let most = match address.parse::<IpAddr>() {
                Ok(IpAddr::V4(_)) => 32,
                Ok(IpAddr::V6(_)) => 128,
                Err(_) => return false,
            };
            length.parse::<u8>().is_ok_and(|length| length <= most)
        });
        if !good {
            found.push(("podCIDR", format!("{cidr:?} is not an address range such as \"10.244.1.0/24\"")));
        }
    }
    for (field, endpoint) in [
        ("containerRuntimeEndpoint", &c.container_runtime_endpoint),
        ("imageServiceEndpoint", &c.image_service_endpoint),
    ] {
        let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
        if !path.starts_with('/') {
            found.push((
                field,
                format!(
                    "{endpoint:?} is not a unix socket: write \"unix:///run/containerd/containerd.sock\""
                ),
            ));
        }
    }
    let clean = c.pod_logs_dir.starts_with('/')
        && !c.pod_logs_dir.contains("//")
        && !c.pod_logs_dir.split('/').any(|part| part == "." || part == "..")
        && (c.pod_logs_dir == "/" || !c.pod_logs_dir.ends_with('/'))
        && c.pod_logs_dir.is_ascii();
    if !clean {
        found.push((
            "podLogsDir",
            format!("{:?} must be an absolute ASCII path without . or ..", c.pod_logs_dir),
        ));
    }
    if !c.static_pod_path.is_empty() && !c.static_pod_path.starts_with('/') {
        found.push(("staticPodPath", format!("{:?} must be an absolute path", c.static_pod_path)));
    }
}

fn eviction(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    let mut signals = vec![];
    signals.extend(c.eviction_hard.keys().map(|signal| ("evictionHard", signal)));
    signals.extend(c.eviction_soft.keys().map(|signal| ("evictionSoft", signal)));
    signals.extend(c.eviction_soft_grace_period.keys().map(|signal| ("evictionSoftGracePeriod", signal)));
    signals.extend(c.eviction_minimum_reclaim.keys().map(|signal| ("evictionMinimumReclaim", signal)));
    for (field, signal) in signals {
        if !SIGNALS.contains(&signal.as_str()) {
            found.push((
                field,
                format!("{signal:?} is not an eviction signal: use {}", super::words::listed(&SIGNALS)),
            ));
        }
    }
    for signal in c.eviction_soft.keys() {
        if !c.eviction_soft_grace_period.contains_key(signal) {
            found.push(("evictionSoft", format!("{signal} has no grace period in evictionSoftGracePeriod")));
        }
    }
    for (signal, grace) in &c.eviction_soft_grace_period {
        if grace.is_negative() {
            found.push(("evictionSoftGracePeriod", format!("{signal}: {grace} must not be negative")));
        }
    }
}

fn allocatable(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    let field = "enforceNodeAllocatable";
    let levels = &c.enforce_node_allocatable;
    for (index, level) in levels.iter().enumerate() {
        if levels[..index].contains(level) {
            found.push((field, format!("{level} is there twice")));
        }
        match level {
            Enforcement::None if levels.len() > 1 => found.push((field, "none must stand alone".into())),
            Enforcement::SystemReserved | Enforcement::SystemReservedCompressible
                if c.system_reserved_cgroup.is_empty() =>
            {
                found.push((field, format!("{level} needs systemReservedCgroup")));
            }
            Enforcement::KubeReserved | Enforcement::KubeReservedCompressible
                if c.kube_reserved_cgroup.is_empty() =>
            {
                found.push((field, format!("{level} needs kubeReservedCgroup")));
            }
            _ => {}
        }
        if *level != Enforcement::None && !c.cgroups_per_qos {
            found.push((
                field,
                format!("{level} needs cgroupsPerQOS: true; else write enforceNodeAllocatable: [none]"),
            ));
        }
    }
    if !c.system_cgroups.is_empty() && c.cgroup_root.is_empty() {
        found.push(("systemCgroups", "needs cgroupRoot".into()));
    }
    for (field, reserved) in [("systemReserved", &c.system_reserved), ("kubeReserved", &c.kube_reserved)] {
        for (resource, amount) in reserved {
            let known = matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pid");
            if !known && !resource.starts_with("hugepages-") {
                let listed =
                    super::words::listed(&["cpu", "memory", "ephemeral-storage", "pid", "hugepages-SIZE"]);
                found.push((field, format!("{resource:?} cannot be reserved: use {listed}")));
            } else if amount.milli() < 0 {
                found.push((field, format!("{resource}: {amount} must not be negative")));
            }
        }
    }
    if !c.reserved_system_cpus.is_empty() {
        if !is_cpu_set(&c.reserved_system_cpus) {
            found.push((
                "reservedSystemCPUs",
                format!("{:?} is not a list of CPUs such as \"0-3,8\"", c.reserved_system_cpus),
            ));
        }
        if !c.system_reserved_cgroup.is_empty() || !c.kube_reserved_cgroup.is_empty() {
            found.push((
                "reservedSystemCPUs",
                "cannot be used together with systemReservedCgroup or kubeReservedCgroup".into(),
            ));
        }
    }
}

fn names(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    for taint in &c.register_with_taints {
        if !is_qualified_name(&taint.key) {
            found.push(("registerWithTaints", format!("{:?} cannot be the key of a taint", taint.key)));
        }
        if !is_label_value(&taint.value) {
            found.push((
                "registerWithTaints",
                format!("{:?} cannot be the value of taint {}", taint.value, taint.key),
            ));
        }
        if taint.time_added.is_some() {
            found.push(("registerWithTaints", format!("taint {}: timeAdded must be left out", taint.key)));
        }
    }
    if c.max_pods > 0
        && c.user_namespaces.as_ref().is_some_and(|u| u.ids_per_pod <= 0 || u.ids_per_pod % 65536 != 0)
    {
        found.push(("userNamespaces.idsPerPod", "must be a multiple of 65536 greater than 0".into()));
    }
}

/// `[prefix/]name` as Kubernetes has it for labels and taints.
pub(super) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let good_prefix = prefix.is_none_or(|prefix| {
        prefix.len() <= 253
            && prefix.split('.').all(|part| {
                !part.is_empty()
                    && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                    && !part.starts_with('-')
                    && !part.ends_with('-')
            })
    });
    good_prefix && !name.is_empty() && is_label_value(name)
}

pub(super) fn is_label_value(value: &str) -> bool {
    let bytes = value.as_bytes();
    let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    match (bytes.first(), bytes.last()) {
        (Some(first), Some(last)) => {
            bytes.len() <= 63
                && first.is_ascii_alphanumeric()
                && last.is_ascii_alphanumeric()
                && bytes.iter().all(inner)
        }
        _ => true,
    }
}

fn is_cpu_set(text: &str) -> bool {
    text.split(',').all(|part| match part.trim().split_once('-') {
        Some((low, high)) => {
            matches!((low.parse::<u32>(), high.parse::<u32>()), (Ok(low), Ok(high)) if low <= high)
        }
        None => part.trim().parse::<u32>().is_ok(),
    })
}
