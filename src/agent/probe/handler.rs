//! Carries out what a probe asks for: an HTTP request, a TCP connection, a gRPC health check, a command.
//! Who asks, and what the answer means, is decided elsewhere.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, GRPCAction, HTTPGetAction, Pod, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use keelson_apiserver::EventRecorder;
use keelson_core::ids::ContainerId;
use keelson_core::probe::{Outcome, judge_http};
use keelson_cri::{ErrorKind, Runtime};
use tokio::time::{Instant, timeout, timeout_at};

use crate::probe::grpc_health;
use crate::probe::http::{Get, PROBE_AGENT};
use crate::probe::resolver::Resolver;

/// What a container's command says is cut at this many characters.
const OUTPUT_LIMIT: usize = 1024;

/// One container as probes and hooks see it: whom they ask, and where a request goes unless it names a host itself.
#[derive(Clone)]
pub struct Place {
    pub runtime: Runtime,
    pub container: ContainerId,
    pub pod_ip: Option<IpAddr>,
    pub spec: Arc<Container>,
    pub pod: Arc<Pod>,
    pub events: EventRecorder,
    pub resolver: Resolver,
}

pub async fn exec(place: &Place, command: &[String], timeout: Duration) -> Outcome {
    match place.runtime.exec_sync(&place.container, command, timeout).await {
        Ok(out) if out.exit_code == 0 => Outcome::Success,
        Ok(out) => {
            let text = [out.stdout, out.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            Outcome::Failure(text.trim_end().chars().take(OUTPUT_LIMIT).collect())
        }
        Err(e) if e.kind == ErrorKind::Timeout => Outcome::Failure(format!(
            "command timed out: {:?} timed out after {}s",
            command.join(" "),
            timeout.as_secs()
        )),
        Err(e) => Outcome::Unknown(e.to_string()),
    }
}

pub async fn tcp(place: &Place, action: &TCPSocketAction, limit: Duration) -> Outcome {
    let (host, port) = match destination(place, action.host.as_deref(), &action.port) {
        Ok(found) => found,
        Err(e) => return Outcome::Unknown(e),
    };
    match timeout(limit, place.resolver.connect(&host, port)).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(e)) => Outcome::Failure(dial_words(&host, port, &e)),
        Err(_) => Outcome::Failure(format!("dial tcp {}: i/o timeout", join(&host, port))),
    }
}

pub async fn grpc(place: &Place, action: &GRPCAction, limit: Duration) -> Outcome {
    let target = match destination(place, None, &IntOrString::Int(action.port)) {
        Ok((host, port)) => join(&host, port),
        Err(e) => return Outcome::Unknown(e),
    };
    let service = action.service.as_deref().unwrap_or_default();
    match timeout(limit, grpc_health::check(&target, service)).await {
        Ok(Ok(())) => Outcome::Success,
        Ok(Err(e)) => Outcome::Failure(format!("gRPC health of {target}: {e}")),
        Err(_) => Outcome::Failure(format!("gRPC health of {target}: no answer within {}s", limit.as_secs())),
    }
}

/// All of it within the limit: looking up, redirects, the last answer to its end.
pub async fn http(place: &Place, action: &HTTPGetAction, limit: Duration) -> Outcome {
    let get = match Get::new(place, action, PROBE_AGENT) {
        Ok(get) => get,
        Err(e) => return Outcome::Unknown(e),
    };
    let failed = |why: &dyn std::fmt::Display| Outcome::Failure(format!("Get {:?}: {why}", get.url()));
    let deadline = Instant::now() + limit;
    let answer = match timeout_at(deadline, get.send()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(e)) => return failed(&e),
        Err(_) => {
            return failed(&"context deadline exceeded (Client.Timeout exceeded while awaiting headers)");
        }
    };
    let status = answer.status;
    match timeout_at(deadline, answer.read_body()).await {
        Ok(Ok(body)) => judge_http(status, &body),
        // Half an answer proves neither health nor its opposite.
        Ok(Err(e)) => Outcome::Unknown(e),
        Err(_) => Outcome::Unknown(
            "context deadline exceeded (Client.Timeout or context cancellation while reading body)".into(),
        ),
    }
}

/// Why nothing was connected to, in the words that people and alerts know.
pub(super) fn dial_words(host: &str, port: u16, error: &io::Error) -> String {
    let said = error.to_string();
    match error.raw_os_error() {
        Some(number) => {
            let said = said.strip_suffix(&format!(" (os error {number})")).unwrap_or(&said);
            format!("dial tcp {}: connect: {}", join(host, port), said.to_lowercase())
        }
        None => format!("dial tcp: lookup {host}: {said}"),
    }
}

fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The host that an action names, else the pod, and the port.
pub(super) fn destination(
    place: &Place,
    host: Option<&str>,
    port: &IntOrString,
) -> Result<(String, u16), String> {
    let port = resolve_port(&place.spec, port)?;
    let host = match host.filter(|h| !h.is_empty()) {
        Some(h) => h.to_owned(),
        None => place.pod_ip.ok_or("the pod has no IP address yet")?.to_string(),
    };
    Ok((host, port))
}

fn resolve_port(container: &Container, port: &IntOrString) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(n) => *n,
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|p| p.name.as_deref() == Some(name));
            match named {
                Some(p) => p.container_port,
                None => name
                    .parse()
                    .map_err(|_| format!("container {:?} has no port named {name:?}", container.name))?,
            }
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("port {number} of container {:?} is not within 1-65535", container.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ContainerPort;

    #[test]
    fn ports_are_found_by_number_by_name_and_by_a_number_in_quotes() {
        let port = ContainerPort { name: Some("web".into()), container_port: 8080, ..Default::default() };
        let c = Container { name: "c".into(), ports: Some(vec![port]), ..Default::default() };
        assert_eq!(resolve_port(&c, &IntOrString::Int(80)), Ok(80));
        assert_eq!(resolve_port(&c, &IntOrString::String("web".into())), Ok(8080));
        assert_eq!(resolve_port(&c, &IntOrString::String("81".into())), Ok(81));
        assert!(resolve_port(&c, &IntOrString::String("nope".into())).is_err());
        assert!(resolve_port(&c, &IntOrString::Int(70000)).is_err());
        assert!(resolve_port(&c, &IntOrString::Int(0)).is_err());
    }
}
