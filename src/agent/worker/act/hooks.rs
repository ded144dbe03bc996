//! Lifecycle hooks: a command, a request or a pause, once, with the failure in words.

use std::time::Duration;

use k8s_openapi::api::core::v1::{HTTPGetAction, LifecycleHandler};
use keelson_apiserver::{EventType, ObjectRef};
use keelson_core::probe::Outcome;

use crate::probe::handler::{self, Place};
use crate::probe::http::{Answer, Get, HOOK_AGENT, NoAnswer};
use crate::probe::insecure_tls::TlsFailure;

/// For a postStart hook, which nothing bounds but the pod's own end.
const NO_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// With what the hook's command has said, which is for the log only: it may hold secrets.
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
    let (kind, result) = if let Some(exec) = &hook.exec {
        ("Exec", command(place, exec.command.as_deref().unwrap_or_default(), limit).await)
    } else if let Some(action) = &hook.http_get {
        let answered = tokio::time::timeout(limit, http(place, action)).await;
        ("HTTP", answered.unwrap_or_else(|_| Err(format!("no answer within {}s", limit.as_secs()))))
    } else if let Some(sleep) = &hook.sleep {
        let asked = Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0));
        tokio::time::sleep(asked.min(limit)).await;
        ("Sleep", Ok(()))
    } else {
        // The API takes tcpSocket too, and says itself that it fails.
        ("Empty", Err("the hook names no handler: exec, httpGet or sleep would be right".into()))
    };
    result.map_err(|message| HookFailure { kind, container: place.spec.name.clone(), message })
}

async fn command(place: &Place, command: &[String], limit: Duration) -> Result<(), String> {
    match handler::exec(place, command, limit).await {
        Outcome::Success | Outcome::Warning(_) => Ok(()),
        Outcome::Failure(message) | Outcome::Unknown(message) => Err(message),
    }
}

/// A hook's request succeeds when it was answered, whatever the answer says.
async fn http(place: &Place, action: &HTTPGetAction) -> Result<(), String> {
    let get = Get::new(place, action, HOOK_AGENT)?;
    match get.send().await {
        Ok(answer) => finish(answer).await,
        Err(NoAnswer::Tls(TlsFailure::PlainHttp)) => {
            let get = get.in_plain();
            let answer = get.send().await.map_err(|e| e.to_string())?;
            let message = format!(
                "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                get.authority()
            );
            let pod = ObjectRef::pod(&place.pod);
            place.events.event(&pod, EventType::Warning, "LifecycleHTTPFallback", &message);
            finish(answer).await;
        }
        Err(e) => return Err(e.to_string()),
    }
    Ok(())
}

/// To its end, since a server may take a client that is gone for a reason to stop what the hook was for.
async fn finish(answer: Answer) {
    if let Err(e) = answer.read_body().await {
        tracing::debug!(error = e, "a hook's answer broke off");
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, HTTPHeader, TCPSocketAction};
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::probe::test_server::{Closed, TestServer, answer, get, place};

    fn container() -> Container {
        Container { name: "c".into(), ..Default::default() }
    }

    async fn ask(action: HTTPGetAction) -> Result<(), String> {
        let hook = LifecycleHandler { http_get: Some(action), ..Default::default() };
        run(&place(container()), &hook, None).await.map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn a_request_that_is_answered_has_succeeded_whatever_the_answer() {
        let server = TestServer::start(|path| match path {
            "/error" => answer("500 Internal Server Error", "", "no"),
            "/away" => answer("302 Found", "location: http://0.0.0.0/\r\n", ""),
            "/half" => "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_owned(),
            _ => answer("404 Not Found", "", ""),
        })
        .await;
        for path in ["/error", "/away", "/half", "/nothing"] {
            assert_eq!(ask(server.get(path)).await, Ok(()), "{path}");
        }
        for request in server.asked() {
            assert!(request.contains("user-agent: kube-lifecycle/1.36\r\n"), "{request}");
        }
        let closed = Closed::new();
        let failed = ask(get(closed.port, "/")).await.unwrap_err();
        assert!(failed.starts_with("HTTP lifecycle hook of container c failed: dial tcp"), "{failed}");
    }

    #[tokio::test]
    async fn a_server_that_speaks_no_tls_is_asked_without_it_and_without_credentials() {
        let server = TestServer::start(|_| answer("200 OK", "", "")).await;
        let header = |name: &str| HTTPHeader { name: name.into(), value: "secret".into() };
        let action = HTTPGetAction {
            scheme: Some("HTTPS".into()),
            http_headers: Some(vec![header("Authorization"), header("X-Other")]),
            ..server.get("/")
        };
        assert_eq!(ask(action).await, Ok(()));
        let asked = server.asked();
        assert_eq!(asked.len(), 2, "TLS first: {asked:?}");
        assert!(asked[1].contains("x-other: secret\r\n") && !asked[1].contains("authorization"), "{asked:?}");
    }

    #[tokio::test]
    async fn tcp_is_no_hook() {
        let port = IntOrString::Int(1);
        let hook =
            LifecycleHandler { tcp_socket: Some(TCPSocketAction { port, host: None }), ..Default::default() };
        assert!(run(&place(container()), &hook, None).await.is_err());
    }
}
