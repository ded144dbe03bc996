//! What goes on at the node's API, counted. Kept for the whole process, which has one such port.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use keelson_kit::metrics::{Kind, LabelledCounter, LabelledHistogram, Text};

const BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
static REJECTED: AtomicU64 = AtomicU64::new(0);
static IN_FLIGHT: AtomicU64 = AtomicU64::new(0);
static REQUESTS: LabelledCounter<4> = LabelledCounter::new();
static ANSWERS: LabelledCounter<1> = LabelledCounter::new();
static TOOK: LabelledHistogram = LabelledHistogram::new(BOUNDS);

/// Counts one of something for as long as it lives.
pub(super) struct Counted(&'static AtomicU64);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn counted(gauge: &'static AtomicU64) -> Counted {
    gauge.fetch_add(1, Ordering::Relaxed);
    Counted(gauge)
}

pub(super) fn connection() -> Counted {
    counted(&CONNECTIONS)
}

/// Closed at once, since there was no seat left.
pub(super) fn rejected() {
    REJECTED.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn request() -> Counted {
    counted(&IN_FLIGHT)
}

/// The head of an answer is on its way.
pub(super) fn answered(method: &str, path: &str, status: StatusCode, took: Duration) {
    let (what, long) = kind(path);
    // Whoever is not let in may have sent anything.
    let method = match method {
        "GET" | "POST" | "HEAD" | "PUT" | "DELETE" | "PATCH" | "OPTIONS" => method,
        _ => "other",
    };
    let long = if long { "true" } else { "false" };
    REQUESTS.count([long, method, what, "readwrite"]);
    ANSWERS.count([status.as_str()]);
    TOOK.observe(what, took.as_secs_f64());
}

/// One of a few values, so that nobody can make the table grow.
fn kind(path: &str) -> (&'static str, bool) {
    const KNOWN: [(&str, bool); 15] = [
        ("metrics/resource", false),
        ("metrics/cadvisor", false),
        ("metrics/probes", false),
        ("metrics", false),
        ("stats", false),
        ("pods", false),
        ("runningpods", false),
        ("healthz", false),
        ("configz", false),
        ("logs", false),
        ("containerLogs", true),
        ("exec", true),
        ("attach", true),
        ("run", true),
        ("portForward", true),
    ];
    let path = path.trim_start_matches('/');
    let is =
        |known: &str| path.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    KNOWN.into_iter().find(|(known, _)| is(known)).unwrap_or(("other", false))
}

pub(super) fn write(text: &mut Text) {
    let now = |gauge: &AtomicU64| gauge.load(Ordering::Relaxed);
    let help = "Requests that are being answered";
    text.single("kubelet_http_inflight_requests", Kind::Gauge, help, now(&IN_FLIGHT));
    let labels = ["long_running", "method", "path", "server_type"];
    REQUESTS.write(text, "kubelet_http_requests_total", labels, "Requests by what they were for");
    let help = "From a request to the head of its answer";
    TOOK.write(text, "kubelet_http_requests_duration_seconds", "path", help);
    ANSWERS.write(text, "keelson_http_answers_total", ["code"], "Answers by their status");
    text.single("keelson_http_connections", Kind::Gauge, "Connections that are open", now(&CONNECTIONS));
    let help = "Connections that were closed for lack of a seat";
    text.single("keelson_http_connections_rejected_total", Kind::Counter, help, now(&REJECTED));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_of_few_words() {
        for (path, expected) in [
            ("/metrics", ("metrics", false)),
            ("/metrics/cadvisor", ("metrics/cadvisor", false)),
            ("/containerLogs/ns/pod/main", ("containerLogs", true)),
            ("/exec/ns/pod/main", ("exec", true)),
            ("/execute", ("other", false)),
            ("/%70ods", ("other", false)),
            ("/", ("other", false)),
        ] {
            assert_eq!(kind(path), expected, "{path}");
        }
    }
}
