//! Values that are each right for their field, but wrong together.

use super::fields::Problem;
use super::{Enforcement, ImagePullVerification, KubeletConfiguration, MemoryReservationPolicy, Period};

/// Every problem with its field's path.
pub(super) fn check(c: &KubeletConfiguration) -> Vec<Problem> {
    let mut found = vec![];
    images(c, &mut found);
    image_access(c, &mut found);
    shutdown(c, &mut found);
    eviction(c, &mut found);
    allocatable(c, &mut found);
    let tiered = c.memory_reservation_policy == MemoryReservationPolicy::TieredReservation;
    if tiered && c.feature_gates.get("MemoryQoS") != Some(&true) {
        let problem = "TieredReservation needs featureGates: {MemoryQoS: true}";
        found.push(("memoryReservationPolicy".into(), problem.into()));
    }
    let ids = c.user_namespaces.as_ref().map_or(65536, |u| u.ids_per_pod);
    if !(65536..=i64::from(u32::MAX)).contains(&ids) || ids % 65536 != 0 {
        let problem = format!("{ids} must be a multiple of 65536 from 65536 to {}", u32::MAX);
        found.push(("userNamespaces.idsPerPod".into(), problem));
    }
    found
}

fn images(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    let (low, high) = (c.image_gc_low_threshold_percent, c.image_gc_high_threshold_percent);
    if low >= high {
        let problem = format!("{low} must be less than imageGCHighThresholdPercent, which is {high}");
        found.push(("imageGCLowThresholdPercent".into(), problem));
    }
    if c.serialize_image_pulls && c.max_parallel_image_pulls.is_some_and(|pulls| pulls > 1) {
        let problem = "more than 1 needs serializeImagePulls: false";
        found.push(("maxParallelImagePulls".into(), problem.into()));
    }
    if c.image_maximum_gc_age > Period::ZERO && c.image_maximum_gc_age <= c.image_minimum_gc_age {
        let problem = format!("must be longer than imageMinimumGCAge, which is {}", c.image_minimum_gc_age);
        found.push(("imageMaximumGCAge".into(), problem));
    }
}

fn image_access(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    let policy = c.image_pull_credentials_verification_policy;
    let listed = !c.preloaded_images_verification_allowlist.is_empty();
    if listed && policy != ImagePullVerification::NeverVerifyAllowlistedImages {
        let problem = "needs imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages";
        found.push(("preloadedImagesVerificationAllowlist".into(), problem.into()));
    }
    let off = c.feature_gates.get("KubeletEnsureSecretPulledImages") == Some(&false);
    if off && policy != ImagePullVerification::default() {
        let problem = "has no meaning with featureGates: {KubeletEnsureSecretPulledImages: false}";
        found.push(("imagePullCredentialsVerificationPolicy".into(), problem.into()));
    }
}

fn shutdown(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    let whole = c.shutdown_grace_period;
    if c.shutdown_grace_period_critical_pods > whole {
        let problem = format!("must not be longer than shutdownGracePeriod, which is {whole}");
        found.push(("shutdownGracePeriodCriticalPods".into(), problem));
    }
    if !c.shutdown_grace_period_by_pod_priority.is_empty() && whole != Period::ZERO {
        let problem = "cannot be used together with shutdownGracePeriod";
        found.push(("shutdownGracePeriodByPodPriority".into(), problem.into()));
    }
}

fn eviction(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    for signal in c.eviction_soft.keys().filter(|signal| !c.eviction_soft_grace_period.contains_key(*signal))
    {
        let problem = format!("{signal} has no grace period in evictionSoftGracePeriod");
        found.push(("evictionSoft".into(), problem));
    }
}

fn allocatable(c: &KubeletConfiguration, found: &mut Vec<Problem>) {
    let mut complain = |field: &str, problem: String| found.push((field.into(), problem));
    let field = "enforceNodeAllocatable";
    let levels = &c.enforce_node_allocatable;
    for (index, level) in levels.iter().enumerate() {
        if levels[..index].contains(level) {
            complain(field, format!("{level} is there twice"));
        }
        match level {
            Enforcement::None if levels.len() > 1 => complain(field, "none must stand alone".into()),
            Enforcement::SystemReserved | Enforcement::SystemReservedCompressible
                if c.system_reserved_cgroup.is_empty() =>
            {
                complain(field, format!("{level} needs systemReservedCgroup"));
            }
            Enforcement::KubeReserved | Enforcement::KubeReservedCompressible
                if c.kube_reserved_cgroup.is_empty() =>
            {
                complain(field, format!("{level} needs kubeReservedCgroup"));
            }
            _ => {}
        }
        if *level != Enforcement::None && !c.cgroups_per_qos {
            let instead = "write enforceNodeAllocatable: [none]";
            complain(field, format!("{level} needs cgroupsPerQOS: true; else {instead}"));
        }
    }
    if !c.system_cgroups.is_empty() && c.cgroup_root.is_empty() {
        complain("systemCgroups", "needs cgroupRoot".into());
    }
    let reserved_cgroup = !c.system_reserved_cgroup.is_empty() || !c.kube_reserved_cgroup.is_empty();
    if !c.reserved_system_cpus.is_empty() && reserved_cgroup {
        let problem = "cannot be used together with systemReservedCgroup or kubeReservedCgroup";
        complain("reservedSystemCPUs", problem.into());
    }
}
