//! How many requests were sent, by method and outcome, under the name that every Kubernetes client has for it.

use keelson_kit::metrics::{LabelledCounter, Text};

static REQUESTS: LabelledCounter<3> = LabelledCounter::new();

/// `code` is the answer's status, or `<error>` when there was none.
pub(crate) fn record(code: &str, host: &str, method: &str) {
    REQUESTS.count([code, host, method]);
}

pub fn write(text: &mut Text) {
    let labels = ["code", "host", "method"];
    REQUESTS.write(text, "rest_client_requests_total", labels, "Requests to the apiserver");
}
