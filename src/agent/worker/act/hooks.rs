//! Lifecycle hooks: the same handlers as probes, once, with the failure in words.

use std::time::Duration;

use k8s_openapi::api::core::v1::{HTTPGetAction, LifecycleHandler};
use keelson_core::probe::Outcome;

use crate::probe::handler::{self, Place};

/// For a postStart hook, which nothing bounds but the pod's own end.
const NO_LIMIT: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, thiserror::Error)]
#[error("{kind} lifecycle hook of container {container} failed: {message}")]
pub(super) struct HookFailure {
    kind: &'static str,
    container: String,
    message: String,
}

pub(super) async fn run(
    place: &Place,
    hook: &LifecycleHandler,
    limit: Option<Duration>,
) -> Result<(), HookFailure> {
    let limit = limit.unwrap_or(NO_LIMIT);
    let (kind, outcome) = if let Some(exec) = &hook.exec {
        ("Exec", handler::exec(place, exec.command.as_deref().unwrap_or_default(), limit).await)
    } else if let Some(get) = &hook.http_get {
        ("Http", http(place, get, limit).await)
    } else if let Some(sleep) = &hook.sleep {
        let asked = Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0));
        tokio::time::sleep(asked.min(limit)).await;
        ("Sleep", Outcome::Success)
    } else if let Some(tcp) = &hook.tcp_socket {
        ("Tcp", handler::tcp(place, tcp, limit).await)
    } else {
        ("Empty", Outcome::Failure("the hook names no handler: exec, httpGet or sleep would be right".into()))
    };
    match outcome {
        Outcome::Success => Ok(()),
        Outcome::Failure(message) | Outcome::Unknown(message) => {
            Err(HookFailure { kind, container: place.spec.name.clone(), message })
        }
    }
}

/// A hook's request succeeds when it was answered; the container may not have been listening yet a moment ago.
async fn http(place: &Place, get: &HTTPGetAction, limit: Duration) -> Outcome {
    handler::http(place, get, limit.min(Duration::from_secs(30))).await
}
