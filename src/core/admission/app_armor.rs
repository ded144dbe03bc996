//! Whether a pod's AppArmor profiles can be enforced here.

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod, PodSpec};

use super::Rejection;

/// Pods written before the fields existed name a container's profile by this annotation. On the wire.
const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

pub(super) fn check(pod: &Pod, spec: &PodSpec, enabled: bool) -> Result<(), Rejection> {
    let refused = |why: String| Err(Rejection::new("AppArmor", format!("Cannot enforce AppArmor: {why}")));
    let fields: Vec<&AppArmorProfile> = profiles(spec).collect();
    let annotated = || {
        let all = pod.metadata.annotations.iter().flatten();
        all.filter_map(|(key, value)| Some((key.strip_prefix(ANNOTATION)?, value.as_str())))
    };
    let required =
        fields.iter().any(|p| p.type_ != "Unconfined") || annotated().any(|(_, value)| value != "unconfined");
    if required && !enabled {
        return refused("AppArmor is not enabled on the host".to_owned());
    }
    let unnamed = fields.iter().any(|p| {
        p.type_ == "Localhost" && p.localhost_profile.as_deref().is_none_or(|name| name.trim().is_empty())
    });
    if unnamed {
        return refused("a profile of type Localhost must be named in localhostProfile".to_owned());
    }
    let empty = |value: &str| value.strip_prefix("localhost/").is_some_and(|name| name.trim().is_empty());
    match annotated().find(|(_, value)| empty(value)) {
        Some((container, _)) => refused(format!("annotation {ANNOTATION}{container} must name a profile")),
        None => Ok(()),
    }
}

/// Those of the pod and of all its containers.
fn profiles(spec: &PodSpec) -> impl Iterator<Item = &AppArmorProfile> {
    let of_pod = spec.security_context.iter().filter_map(|s| s.app_armor_profile.as_ref());
    let main = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let main = main.filter_map(|c| c.security_context.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten().filter_map(|c| c.security_context.as_ref());
    of_pod.chain(main.chain(ephemeral).filter_map(|s| s.app_armor_profile.as_ref()))
}
