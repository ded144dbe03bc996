//! Whom a container may run as.

use k8s_openapi::api::core::v1::{Container, Pod};

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
}

/// Refuses a container that must not be root and would be, or might be. `image_uid` is the numeric user that the
/// image names, `image_username` its user when that is a name.
pub fn verify_non_root(
    pod: &Pod,
    container: &Container,
    image_uid: Option<i64>,
    image_username: &str,
) -> Result<(), ConfigError> {
    // What the container asks for goes before what its pod does.
    let own = container.security_context.as_ref();
    let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let user = own.and_then(|s| s.run_as_user).or(of_pod.and_then(|s| s.run_as_user));
    let non_root = own.and_then(|s| s.run_as_non_root).or(of_pod.and_then(|s| s.run_as_non_root));
    let in_range = |uid: i64| (0..=i64::from(i32::MAX)).contains(&uid);
    let (pod, container) = (full_name(pod), container.name.clone());

    // A number that does not fit wraps around in the kernel and may end as 0, whatever the policy says.
    if let Some(uid) = user
        && !in_range(uid)
    {
        return Err(SecurityError::OutOfRange { uid, pod, container }.into());
    }
    let problem = match (user, image_uid) {
        _ if non_root != Some(true) => return Ok(()),
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
}
