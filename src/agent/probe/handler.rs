//! Carries out what a probe or a lifecycle hook asks for: an HTTP request, a TCP connection, a gRPC health
//! check, a command, a pause.
//! Who asks, and what the answer means, is decided elsewhere.

use std::net::IpAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, GRPCAction, HTTPGetAction, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use keelson_core::ids::ContainerId;
use keelson_core::probe::Outcome;
use keelson_cri::{ErrorKind, Runtime};
use tokio::net::TcpStream;

use crate::probe::{grpc_health, insecure_tls};

/// An answer longer than this proves nothing more, and must not fill the agent's memory.
const BODY_LIMIT: usize = 10 * 1024;

/// Where a request of one container goes unless it names a host itself.
#[derive(Clone)]
pub struct Place {
    pub runtime: Runtime,
    pub container: ContainerId,
    pub pod_ip: Option<IpAddr>,
    pub spec: std::sync::Arc<Container>,
}

pub async fn exec(place: &Place, command: &[String], timeout: Duration) -> Outcome {
    match place.runtime.exec_sync(&place.container, command, timeout).await {
        Ok(out) if out.exit_code == 0 => Outcome::Success,
        Ok(out) => {
            let text = [out.stdout, out.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            Outcome::Failure(format!("exit code {}: {}", out.exit_code, clip(text.trim())))
        }
        Err(e) if e.kind == ErrorKind::Timeout => {
            Outcome::Failure(format!("command {command:?} timed out after {}s", timeout.as_secs()))
        }
        Err(e) => Outcome::Unknown(e.to_string()),
    }
}

pub async fn tcp(place: &Place, action: &TCPSocketAction, timeout: Duration) -> Outcome {
    let target = match address(place, action.host.as_deref(), &action.port) {
        Ok(t) => t,
        Err(e) => return Outcome::Unknown(e),
    };
    match tokio::time::timeout(timeout, TcpStream::connect(&target)).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(e)) => Outcome::Failure(format!("dial tcp {target}: {e}")),
        Err(_) => Outcome::Failure(format!("dial tcp {target}: no answer within {}s", timeout.as_secs())),
    }
}

pub async fn grpc(place: &Place, action: &GRPCAction, timeout: Duration) -> Outcome {
    let target = match address(place, None, &IntOrString::Int(action.port)) {
        Ok(t) => t,
        Err(e) => return Outcome::Unknown(e),
    };
    let service = action.service.as_deref().unwrap_or_default();
    match tokio::time::timeout(timeout, grpc_health::check(&target, service)).await {
        Ok(Ok(())) => Outcome::Success,
        Ok(Err(e)) => Outcome::Failure(format!("gRPC health of {target}: {e}")),
        Err(_) => {
            Outcome::Failure(format!("gRPC health of {target}: no answer within {}s", timeout.as_secs()))
        }
    }
}

/// 2xx and 3xx are success. A redirect to another host is not followed; it counts as an answer.
pub async fn http(place: &Place, action: &HTTPGetAction, timeout: Duration) -> Outcome {
    let target = match address(place, action.host.as_deref(), &action.port) {
        Ok(t) => t,
        Err(e) => return Outcome::Unknown(e),
    };
    match tokio::time::timeout(timeout, get(&target, action)).await {
        Ok(Ok(status)) if (200..400).contains(&status) => Outcome::Success,
        Ok(Ok(status)) => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
        Ok(Err(e)) => Outcome::Failure(format!("Get {:?}: {e}", url(&target, action))),
        Err(_) => Outcome::Failure(format!(
            "Get {:?}: no answer within {}s",
            url(&target, action),
            timeout.as_secs()
        )),
    }
}

fn url(target: &str, action: &HTTPGetAction) -> String {
    let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_ascii_lowercase();
    format!("{scheme}://{target}{}", path(action))
}

fn path(action: &HTTPGetAction) -> String {
    let path = action.path.as_deref().unwrap_or("/");
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

async fn get(target: &str, action: &HTTPGetAction) -> Result<u16, String> {
    let stream = TcpStream::connect(target).await.map_err(|e| format!("connect: {e}"))?;
    let _ = stream.set_nodelay(true);
    if action.scheme.as_deref() == Some("HTTPS") {
        let host = target.rsplit_once(':').map_or(target, |(h, _)| h).trim_matches(['[', ']']);
        let tls = insecure_tls::connect(host, stream).await?;
        request(TokioIo::new(tls), target, action).await
    } else {
        request(TokioIo::new(stream), target, action).await
    }
}

async fn request<I>(io: I, target: &str, action: &HTTPGetAction) -> Result<u16, String>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(io).await.map_err(|e| format!("handshake: {e}"))?;
    // The connection ends with the request: a probe holds no socket between two runs.
    let connection = tokio::spawn(connection);
    let mut builder = hyper::Request::get(path(action)).header("connection", "close");
    let mut named = (false, false, false);
    for h in action.http_headers.iter().flatten() {
        named.0 |= h.name.eq_ignore_ascii_case("host");
        named.1 |= h.name.eq_ignore_ascii_case("user-agent");
        named.2 |= h.name.eq_ignore_ascii_case("accept");
        // An empty value takes a default header away.
        if !h.value.is_empty() {
            builder = builder.header(&h.name, &h.value);
        }
    }
    if !named.0 {
        builder = builder.header("host", target);
    }
    if !named.1 {
        builder = builder.header("user-agent", "kube-probe/1.36");
    }
    if !named.2 {
        builder = builder.header("accept", "*/*");
    }
    let request =
        builder.body(Empty::<Bytes>::new()).map_err(|e| format!("the request is not valid HTTP: {e}"))?;
    let answer = sender.send_request(request).await.map_err(|e| e.to_string());
    let status = match answer {
        Ok(response) => {
            let status = response.status().as_u16();
            // Read on a little, so that a server does not see a reset; what is beyond the limit is left unread.
            let _ = Limited::new(response.into_body(), BODY_LIMIT).collect().await;
            Ok(status)
        }
        Err(e) => Err(e),
    };
    connection.abort();
    status
}

fn address(place: &Place, host: Option<&str>, port: &IntOrString) -> Result<String, String> {
    let port = resolve_port(&place.spec, port)?;
    let host = match host.filter(|h| !h.is_empty()) {
        Some(h) => h.to_owned(),
        None => place.pod_ip.ok_or("the pod has no IP address yet")?.to_string(),
    };
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
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

fn clip(text: &str) -> String {
    text.chars().take(1024).collect()
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
