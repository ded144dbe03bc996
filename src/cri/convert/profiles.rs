//! Seccomp and AppArmor: which profile confines a container, and where it comes from.

use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, SeccompProfile};
use keelson_proto::runtime::v1::SecurityProfile;
use keelson_proto::runtime::v1::security_profile::ProfileType;

use super::ConvertError;

/// Pods written before the fields existed name a container's AppArmor profile by this annotation. On the wire.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The container's own profile, else the pod's, else what the node does by default. A privileged container is only
/// confined when that is asked for.
pub fn seccomp(
    pod: &Pod,
    container: &Container,
    privileged: bool,
    seccomp_root: &Path,
    runtime_default: bool,
) -> Result<SecurityProfile, ConvertError> {
    let own = container.security_context.as_ref().and_then(|sc| sc.seccomp_profile.as_ref());
    let pods = pod
        .spec
        .as_ref()
        .and_then(|s| s.security_context.as_ref())
        .and_then(|sc| sc.seccomp_profile.as_ref());
    match own.or(pods) {
        Some(asked) => seccomp_profile(asked, seccomp_root),
        None if runtime_default && !privileged => Ok(profile(ProfileType::RuntimeDefault, "")),
        None => Ok(profile(ProfileType::Unconfined, "")),
    }
}

fn seccomp_profile(asked: &SeccompProfile, root: &Path) -> Result<SecurityProfile, ConvertError> {
    match asked.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault, "")),
        "Unconfined" => Ok(profile(ProfileType::Unconfined, "")),
        "Localhost" => {
            let name = asked.localhost_profile.as_deref().unwrap_or_default();
            let inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
            if name.is_empty() || !inside || name.contains('\0') {
                return Err(ConvertError::SeccompPath(name.to_owned()));
            }
            Ok(profile(ProfileType::Localhost, &root.join(name).to_string_lossy()))
        }
        other => Err(ConvertError::UnknownValue {
            field: "seccompProfile.type",
            value: other.to_owned(),
            known: "RuntimeDefault, Localhost, Unconfined",
        }),
    }
}

/// The container's own profile, else the one in the pod's annotations (static pods may have nothing else), else the
/// pod's. The second value is the same in the words of runtimes that do not know the first.
pub fn apparmor(pod: &Pod, container: &Container) -> Result<Option<(SecurityProfile, String)>, ConvertError> {
    let own = container.security_context.as_ref().and_then(|sc| sc.app_armor_profile.clone());
    let pods = || {
        pod.spec
            .as_ref()
            .and_then(|s| s.security_context.as_ref())
            .and_then(|sc| sc.app_armor_profile.clone())
    };
    let Some(asked) = own.or_else(|| annotated(pod, &container.name)).or_else(pods) else { return Ok(None) };
    match asked.type_.as_str() {
        "RuntimeDefault" => Ok(Some((profile(ProfileType::RuntimeDefault, ""), "runtime/default".into()))),
        "Unconfined" => Ok(Some((profile(ProfileType::Unconfined, ""), "unconfined".into()))),
        "Localhost" => {
            let name = asked.localhost_profile.as_deref().unwrap_or_default().trim();
            if name.is_empty() {
                return Err(ConvertError::AppArmorName);
            }
            Ok(Some((profile(ProfileType::Localhost, name), format!("localhost/{name}"))))
        }
        other => Err(ConvertError::UnknownValue {
            field: "appArmorProfile.type",
            value: other.to_owned(),
            known: "RuntimeDefault, Localhost, Unconfined",
        }),
    }
}

fn annotated(pod: &Pod, container: &str) -> Option<AppArmorProfile> {
    let key = format!("{APPARMOR_ANNOTATION}{container}");
    let value = pod.metadata.annotations.as_ref()?.get(&key)?;
    let typed = |type_: &str, name: Option<&str>| {
        Some(AppArmorProfile { type_: type_.into(), localhost_profile: name.map(str::to_owned) })
    };
    match value.as_str() {
        "runtime/default" => typed("RuntimeDefault", None),
        "unconfined" => typed("Unconfined", None),
        other => typed("Localhost", Some(other.strip_prefix("localhost/")?)),
    }
}

pub fn profile(kind: ProfileType, localhost_ref: &str) -> SecurityProfile {
    SecurityProfile { profile_type: kind.into(), localhost_ref: localhost_ref.to_owned() }
}
