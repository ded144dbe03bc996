//! Which endpoint a request means. The paths are those of the kubelet.

use super::path::Segments;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// All checks, or the one named.
    Healthz(Option<String>),
    Pods,
    RunningPods,
    Configz,
    ContainerLogs(OfContainer),
    StatsSummary,
    Metrics,
    MetricsCadvisor,
    MetricsResource,
    MetricsProbes,
    Exec(OfContainer),
    Attach(OfContainer),
    Run(OfContainer),
    PortForward(OfPod),
    /// A file or folder of the machine's logs, named part by part.
    Logs(Vec<String>),
    Checkpoint(OfContainer),
}

impl Endpoint {
    /// Refused where enableDebuggingHandlers is false: whatever reaches into containers or the machine's files.
    pub fn is_debugging(&self) -> bool {
        matches!(
            self,
            Self::Exec(_)
                | Self::Attach(_)
                | Self::Run(_)
                | Self::PortForward(_)
                | Self::ContainerLogs(_)
                | Self::RunningPods
                | Self::Configz
                | Self::Logs(_)
                | Self::Checkpoint(_)
        )
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfPod {
    pub namespace: String,
    pub name: String,
    /// Where it is given, only the pod that has it is meant.
    pub uid: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfContainer {
    pub pod: OfPod,
    pub container: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    NotFound,
    /// The path is right; these are the methods that it takes.
    Method(&'static str),
}

const READ: &[&str] = &["GET", "HEAD"];
const STREAM: &[&str] = &["GET", "POST"];
const POST: &[&str] = &["POST"];

pub fn route(method: &str, path: &Segments) -> Result<Endpoint, Refusal> {
    let parts = path.parts();
    let (endpoint, methods) = match parts.as_slice() {
        ["healthz"] => (Endpoint::Healthz(None), READ),
        ["healthz", check] => (Endpoint::Healthz(Some((*check).into())), READ),
        ["pods"] => (Endpoint::Pods, READ),
        ["runningpods"] => (Endpoint::RunningPods, READ),
        ["configz"] => (Endpoint::Configz, READ),
        ["stats", "summary"] => (Endpoint::StatsSummary, READ),
        ["metrics"] => (Endpoint::Metrics, READ),
        ["metrics", "cadvisor"] => (Endpoint::MetricsCadvisor, READ),
        ["metrics", "resource"] => (Endpoint::MetricsResource, READ),
        ["metrics", "probes"] => (Endpoint::MetricsProbes, READ),
        ["containerLogs", namespace, name, container] => {
            (Endpoint::ContainerLogs(of_container(namespace, name, None, container)), READ)
        }
        ["exec", rest @ ..] => (Endpoint::Exec(container(rest)?), STREAM),
        ["attach", rest @ ..] => (Endpoint::Attach(container(rest)?), STREAM),
        ["run", rest @ ..] => (Endpoint::Run(container(rest)?), POST),
        ["portForward", namespace, name] => (Endpoint::PortForward(of_pod(namespace, name, None)), STREAM),
        ["portForward", namespace, name, uid] => {
            (Endpoint::PortForward(of_pod(namespace, name, Some(uid))), STREAM)
        }
        ["logs", rest @ ..] => (Endpoint::Logs(rest.iter().map(|p| (*p).into()).collect()), READ),
        ["checkpoint", namespace, name, container] => {
            (Endpoint::Checkpoint(of_container(namespace, name, None, container)), POST)
        }
        _ => return Err(Refusal::NotFound),
    };
    if methods.contains(&method) {
        return Ok(endpoint);
    }
    Err(Refusal::Method(match methods {
        [_] => "POST",
        ["GET", "POST"] => "GET, POST",
        _ => "GET, HEAD",
    }))
}

fn container(parts: &[&str]) -> Result<OfContainer, Refusal> {
    match parts {
        [namespace, name, container] => Ok(of_container(namespace, name, None, container)),
        [namespace, name, uid, container] => Ok(of_container(namespace, name, Some(uid), container)),
        _ => Err(Refusal::NotFound),
    }
}

fn of_pod(namespace: &str, name: &str, uid: Option<&str>) -> OfPod {
    OfPod { namespace: namespace.into(), name: name.into(), uid: uid.map(Into::into) }
}

fn of_container(namespace: &str, name: &str, uid: Option<&str>, container: &str) -> OfContainer {
    OfContainer { pod: of_pod(namespace, name, uid), container: container.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(method: &str, path: &str) -> Result<Endpoint, Refusal> {
        route(method, &Segments::parse(path).unwrap())
    }

    #[test]
    fn paths_of_the_kubelet_are_known() {
        let container = of_container("n", "p", None, "c");
        let with_uid = of_container("n", "p", Some("u"), "c");
        for (method, path, expected) in [
            ("GET", "/pods", Endpoint::Pods),
            ("GET", "/pods/", Endpoint::Pods),
            ("GET", "/runningpods/", Endpoint::RunningPods),
            ("HEAD", "/healthz", Endpoint::Healthz(None)),
            ("GET", "/healthz/ping", Endpoint::Healthz(Some("ping".into()))),
            ("GET", "/configz", Endpoint::Configz),
            ("GET", "/stats/summary", Endpoint::StatsSummary),
            ("GET", "/metrics/cadvisor", Endpoint::MetricsCadvisor),
            ("GET", "/containerLogs/n/p/c", Endpoint::ContainerLogs(container.clone())),
            ("POST", "/exec/n/p/c", Endpoint::Exec(container.clone())),
            ("GET", "/exec/n/p/u/c", Endpoint::Exec(with_uid.clone())),
            ("GET", "/attach/n/p/c", Endpoint::Attach(container.clone())),
            ("POST", "/run/n/p/u/c", Endpoint::Run(with_uid)),
            ("POST", "/portForward/n/p", Endpoint::PortForward(of_pod("n", "p", None))),
            ("GET", "/portForward/n/p/u", Endpoint::PortForward(of_pod("n", "p", Some("u")))),
            ("GET", "/logs/", Endpoint::Logs(vec![])),
            ("GET", "/logs/a/b.log", Endpoint::Logs(vec!["a".into(), "b.log".into()])),
            ("POST", "/checkpoint/n/p/c", Endpoint::Checkpoint(container)),
        ] {
            assert_eq!(routed(method, path), Ok(expected), "{method} {path}");
        }
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        for (method, path, expected) in [
            ("GET", "/", Refusal::NotFound),
            ("GET", "/debug/pprof/", Refusal::NotFound),
            ("GET", "/spec", Refusal::NotFound),
            ("GET", "/pods/n/p", Refusal::NotFound),
            ("GET", "/exec/n/p", Refusal::NotFound),
            ("GET", "/exec/n/p/u/c/more", Refusal::NotFound),
            ("GET", "/portforward/n/p", Refusal::NotFound),
            ("POST", "/pods", Refusal::Method("GET, HEAD")),
            ("GET", "/run/n/p/c", Refusal::Method("POST")),
            ("DELETE", "/exec/n/p/c", Refusal::Method("GET, POST")),
        ] {
            assert_eq!(routed(method, path), Err(expected), "{method} {path}");
        }
    }
}
