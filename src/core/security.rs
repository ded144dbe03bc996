//! Whom a container runs as and what it may do.

use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile,
    SecurityContext,
};

use crate::env::ConfigError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsRoot { pod: String, container: String },
    #[error("container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})")]
    ImageRunsAsRoot { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: {pod:?}, container: {container})"
    )]
    UserName { user: String, pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({max})): must be between 0 and {max}, inclusive (pod: {pod:?}, container: {container})",
        max = i32::MAX
    )]
    UserId { uid: i64, pod: String, container: String },
    #[error("user id {uid} is out of range: it must be between 0 and {max}, inclusive (pod: {pod:?}, container: {container})", max = i32::MAX)]
    OutOfRange { uid: i64, pod: String, container: String },
    #[error("localhostProfile must be set if {kind} type is Localhost")]
    ProfileMissing { kind: &'static str },
    #[error("{kind} localhostProfile {profile:?} must be a relative path beneath {root}, without '..'")]
    ProfileOutside { kind: &'static str, profile: String, root: String },
    #[error("unknown {kind} type {type_:?}: it must be RuntimeDefault, Localhost or Unconfined")]
    ProfileType { kind: &'static str, type_: String },
}

/// A container's security context laid over its pod's. What neither sets is None, and the runtime's default holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EffectiveSecurity {
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub run_as_non_root: bool,
    pub privileged: bool,
    pub read_only_root_filesystem: bool,
    /// From allowPrivilegeEscalation: false.
    pub no_new_privileges: bool,
    pub capabilities: Option<Capabilities>,
    pub se_linux_options: Option<SELinuxOptions>,
    /// procMount: Unmasked leaves /proc as it is.
    pub unmasked_proc: bool,
    /// fsGroup first, then supplementalGroups.
    pub supplemental_groups: Vec<i64>,
    /// Only the groups above, not those that the image gives the user.
    pub strict_supplemental_groups: bool,
    pub seccomp_profile: Option<SeccompProfile>,
    pub app_armor_profile: Option<AppArmorProfile>,
}

pub fn effective(pod: &Pod, container: &Container) -> EffectiveSecurity {
    let none = (PodSecurityContext::default(), SecurityContext::default());
    let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.as_ref()).unwrap_or(&none.0);
    let own = container.security_context.as_ref().unwrap_or(&none.1);
    let groups = of_pod.fs_group.iter().chain(of_pod.supplemental_groups.iter().flatten());
    EffectiveSecurity {
        run_as_user: own.run_as_user.or(of_pod.run_as_user),
        run_as_group: own.run_as_group.or(of_pod.run_as_group),
        run_as_non_root: own.run_as_non_root.or(of_pod.run_as_non_root).unwrap_or(false),
        privileged: own.privileged.unwrap_or(false),
        read_only_root_filesystem: own.read_only_root_filesystem.unwrap_or(false),
        no_new_privileges: own.allow_privilege_escalation == Some(false),
        capabilities: own.capabilities.clone(),
        se_linux_options: own.se_linux_options.clone().or_else(|| of_pod.se_linux_options.clone()),
        unmasked_proc: own.proc_mount.as_deref() == Some("Unmasked"),
        supplemental_groups: groups.copied().collect(),
        strict_supplemental_groups: of_pod.supplemental_groups_policy.as_deref() == Some("Strict"),
        seccomp_profile: own.seccomp_profile.clone().or_else(|| of_pod.seccomp_profile.clone()),
        app_armor_profile: own.app_armor_profile.clone().or_else(|| of_pod.app_armor_profile.clone()),
    }
}

/// Refuses a container that must not be root and would be, or might be. `image_uid` is the numeric user that the
/// image names, `image_username` its user when that is a name.
pub fn verify_non_root(
    pod: &Pod,
    container: &Container,
    image_uid: Option<i64>,
    image_username: &str,
) -> Result<(), ConfigError> {
    let security = effective(pod, container);
    let in_range = |uid: i64| (0..=i64::from(i32::MAX)).contains(&uid);
    let (pod, container) = (full_name(pod), container.name.clone());

    // A number that does not fit wraps around in the kernel and may end as 0, whatever the policy says.
    if let Some(uid) = security.run_as_user
        && !in_range(uid)
    {
        return Err(SecurityError::OutOfRange { uid, pod, container }.into());
    }
    let problem = match (security.run_as_user, image_uid) {
        _ if !security.run_as_non_root => return Ok(()),
        (Some(0), _) => SecurityError::RunAsRoot { pod, container },
        (Some(_), _) => return Ok(()),
        (None, Some(0)) => SecurityError::ImageRunsAsRoot { pod, container },
        (None, Some(uid)) if !in_range(uid) => SecurityError::UserId { uid, pod, container },
        (None, Some(_)) => return Ok(()),
        (None, None) if !image_username.is_empty() => {
            SecurityError::UserName { user: image_username.to_owned(), pod, container }
        }
        // An image that names no user runs as root.
        (None, None) => SecurityError::ImageRunsAsRoot { pod, container },
    };
    Err(problem.into())
}

/// A seccomp or AppArmor profile, ready for the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Profile {
    RuntimeDefault,
    Unconfined,
    /// For seccomp a file beneath the profile directory, for AppArmor the name of a loaded profile.
    Localhost(String),
}

/// The seccomp profile of a container. Without one it runs unconfined, or with the runtime's if the agent is
/// configured so.
pub fn seccomp(
    security: &EffectiveSecurity,
    root: &Path,
    default_runtime: bool,
) -> Result<Profile, ConfigError> {
    const KIND: &str = "seccompProfile";
    let Some(wanted) = &security.seccomp_profile else {
        return Ok(if default_runtime { Profile::RuntimeDefault } else { Profile::Unconfined });
    };
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok(Profile::RuntimeDefault),
        "Unconfined" => Ok(Profile::Unconfined),
        "Localhost" => {
            let path = beneath(KIND, root, wanted.localhost_profile.as_deref())?;
            Ok(Profile::Localhost(path.to_string_lossy().into_owned()))
        }
        other => Err(SecurityError::ProfileType { kind: KIND, type_: other.to_owned() }.into()),
    }
}

/// The AppArmor profile of a container, None when it asks for none and the runtime decides.
pub fn app_armor(security: &EffectiveSecurity) -> Result<Option<Profile>, ConfigError> {
    const KIND: &str = "appArmorProfile";
    let Some(wanted) = &security.app_armor_profile else { return Ok(None) };
    let profile = match wanted.type_.as_str() {
        "RuntimeDefault" => Profile::RuntimeDefault,
        "Unconfined" => Profile::Unconfined,
        "Localhost" => {
            let name = wanted.localhost_profile.as_deref().map(str::trim).filter(|name| !name.is_empty());
            let name = name.ok_or(SecurityError::ProfileMissing { kind: KIND })?;
            Profile::Localhost(name.to_owned())
        }
        other => return Err(SecurityError::ProfileType { kind: KIND, type_: other.to_owned() }.into()),
    };
    Ok(Some(profile))
}

fn beneath(kind: &'static str, root: &Path, profile: Option<&str>) -> Result<PathBuf, SecurityError> {
    let profile = profile.filter(|p| !p.is_empty()).ok_or(SecurityError::ProfileMissing { kind })?;
    let inside =
        Path::new(profile).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    let names_a_file = Path::new(profile).file_name().is_some();
    if !inside || !names_a_file || profile.contains('\0') {
        let root = root.display().to_string();
        return Err(SecurityError::ProfileOutside { kind, profile: profile.to_owned(), root });
    }
    Ok(root.join(profile))
}

/// As the kubelet writes a pod in such messages.
fn full_name(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let of = |field: &Option<String>| field.clone().unwrap_or_default();
    format!("{}_{}({})", of(&meta.name), of(&meta.namespace), of(&meta.uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fixture(pod: Value, container: Value) -> (Pod, Container) {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "securityContext": pod},
        }));
        let container = serde_json::from_value(json!({"name": "c", "securityContext": container}));
        (pod.unwrap(), container.unwrap())
    }

    #[test]
    fn non_root_is_verified_before_anything_runs() {
        let strict = json!({"runAsNonRoot": true});
        for (what, pod, container, uid, user, want) in [
            ("nothing asked, image is root", json!({}), json!({}), Some(0), "", Ok(())),
            ("image runs as a number", strict.clone(), json!({}), Some(1000), "", Ok(())),
            (
                "image is root",
                strict.clone(),
                json!({}),
                Some(0),
                "",
                Err("image will run as root (pod: \"p_ns(u)\", container: c)"),
            ),
            ("image names no user", strict.clone(), json!({}), None, "", Err("image will run as root")),
            (
                "image names a user",
                strict.clone(),
                json!({}),
                None,
                "app",
                Err("image has non-numeric user (app), cannot verify user is non-root"),
            ),
            ("runAsUser rescues a named user", strict.clone(), json!({"runAsUser": 7}), None, "app", Ok(())),
            (
                "runAsUser 0",
                strict.clone(),
                json!({"runAsUser": 0}),
                Some(5),
                "",
                Err("container's runAsUser breaks non-root policy"),
            ),
            (
                "the container may relax the pod",
                strict.clone(),
                json!({"runAsNonRoot": false}),
                Some(0),
                "",
                Ok(()),
            ),
            (
                "uid overflow in the image",
                strict.clone(),
                json!({}),
                Some(4_294_967_296),
                "",
                Err("invalid user id (4294967296)"),
            ),
            (
                "uid overflow in the pod",
                json!({"runAsUser": 4_294_967_296i64}),
                json!({}),
                None,
                "",
                Err("out of range"),
            ),
            (
                "negative uid in the image",
                strict.clone(),
                json!({}),
                Some(-1),
                "",
                Err("invalid user id (-1)"),
            ),
        ] {
            let (pod, container) = fixture(pod, container);
            let got = verify_non_root(&pod, &container, uid, user);
            match want {
                Ok(()) => assert_eq!(got, Ok(()), "{what}"),
                Err(words) => {
                    assert!(got.clone().is_err_and(|e| e.to_string().contains(words)), "{what}: {got:?}")
                }
            }
        }
    }

    #[test]
    fn the_container_speaks_before_the_pod() {
        let (pod, container) = fixture(
            json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4, 5]}),
            json!({"runAsUser": 9, "allowPrivilegeEscalation": false, "privileged": true}),
        );
        let got = effective(&pod, &container);
        assert_eq!((got.run_as_user, got.run_as_group), (Some(9), Some(2)));
        assert_eq!(got.supplemental_groups, [3, 4, 5]);
        assert!(got.no_new_privileges && got.privileged);
    }

    #[test]
    fn a_localhost_profile_stays_in_its_directory() {
        let root = Path::new("/var/lib/kubelet/seccomp");
        for (profile, want) in [
            (json!("a/b.json"), Some("/var/lib/kubelet/seccomp/a/b.json")),
            (json!(""), None),
            (json!(null), None),
            (json!("/etc/passwd"), None),
            (json!("../x"), None),
            (json!("a/../../x"), None),
            (json!("."), None),
        ] {
            let security = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": profile}});
            let (pod, container) = fixture(json!({}), security);
            let got = seccomp(&effective(&pod, &container), root, false).ok();
            assert_eq!(got, want.map(|p| Profile::Localhost(p.into())), "{profile}");
        }
        let (pod, container) =
            fixture(json!({}), json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": " "}}));
        assert!(app_armor(&effective(&pod, &container)).is_err());
    }
}
