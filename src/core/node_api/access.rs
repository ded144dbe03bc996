//! What a caller must be allowed to do for a request: a verb on a subresource of this node, as RBAC rules name them.

use super::path::Segments;

/// Any one of `subresources` is enough. The kubelet's finer ones come first, `proxy` is what they grew out of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    pub verb: String,
    pub subresources: &'static [&'static str],
}

/// Decided for every path, also one that nobody serves: only who may ask is told that there is nothing.
pub fn access(method: &str, path: &Segments) -> Access {
    let first = path.first().unwrap_or_default();
    let subresources: &[&str] = match first {
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        "flagz" => &["configz"],
        "statusz" => &["statusz"],
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "checkpoint" => &["checkpoint"],
        _ => &["proxy"],
    };
    let verb = match (first, method) {
        // Running something in a container is never a mere look at it, though a WebSocket has to ask for it with GET.
        ("exec" | "attach" | "run" | "portForward", _) => "create",
        (_, "GET" | "HEAD") => "get",
        (_, "POST") => "create",
        (_, "PUT") => "update",
        (_, "PATCH") => "patch",
        (_, "DELETE") => "delete",
        // No rule names it, so nobody but those who may do everything passes.
        (_, other) => return Access { verb: other.to_lowercase(), subresources },
    };
    Access { verb: verb.to_owned(), subresources }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_asks_for_its_subresource() {
        for (method, path, verb, subresources) in [
            ("GET", "/pods", "get", &["pods", "proxy"][..]),
            ("GET", "/pods/", "get", &["pods", "proxy"]),
            ("GET", "/%70ods", "get", &["pods", "proxy"]),
            ("GET", "/runningpods/", "get", &["pods", "proxy"]),
            ("GET", "/healthz", "get", &["healthz", "proxy"]),
            ("GET", "/healthz/syncloop", "get", &["healthz", "proxy"]),
            ("GET", "/configz", "get", &["configz", "proxy"]),
            ("GET", "/flagz", "get", &["configz"]),
            ("GET", "/statusz", "get", &["statusz"]),
            ("GET", "/stats/summary", "get", &["stats"]),
            ("GET", "/metrics", "get", &["metrics"]),
            ("GET", "/metrics/cadvisor", "get", &["metrics"]),
            ("GET", "/logs/", "get", &["log"]),
            ("GET", "/logs/pods/x", "get", &["log"]),
            ("POST", "/checkpoint/ns/pod/c", "create", &["checkpoint"]),
            ("GET", "/containerLogs/ns/pod/c", "get", &["proxy"]),
            ("GET", "/podsx", "get", &["proxy"]),
            ("GET", "/", "get", &["proxy"]),
            ("GET", "/debug/pprof/profile", "get", &["proxy"]),
            ("PUT", "/debug/flags/v", "update", &["proxy"]),
            ("HEAD", "/metrics", "get", &["metrics"]),
            ("DELETE", "/pods", "delete", &["pods", "proxy"]),
            ("BREW", "/pods", "brew", &["pods", "proxy"]),
        ] {
            let asked = access(method, &Segments::parse(path).unwrap());
            assert_eq!(asked, Access { verb: verb.into(), subresources }, "{method} {path}");
        }
    }

    #[test]
    fn what_runs_in_a_container_needs_create_whatever_the_method() {
        for path in
            ["/exec/n/p/c", "/attach/n/p/c", "/run/n/p/c", "/portForward/n/p", "/%65xec/n/p/c", "/exec"]
        {
            for method in ["GET", "POST", "HEAD", "PUT", "OPTIONS"] {
                let asked = access(method, &Segments::parse(path).unwrap());
                assert_eq!(
                    asked,
                    Access { verb: "create".into(), subresources: &["proxy"] },
                    "{method} {path}"
                );
            }
        }
    }
}
