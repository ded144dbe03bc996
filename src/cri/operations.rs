//! How many calls were made to the runtime, how long they took and how many failed, under the kubelet's names.
//!
//! Kept for the whole process, as a process has one set of metrics whatever it talks to.

use std::time::Duration;

use keelson_kit::metrics::{LabelledCounter, LabelledHistogram, Text};

/// From 5 ms, each two and a half times the one before, as the kubelet has them.
const BOUNDS: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];

static TOOK: LabelledHistogram = LabelledHistogram::new(BOUNDS);
static CALLS: LabelledCounter<1> = LabelledCounter::new();
static FAILED: LabelledCounter<1> = LabelledCounter::new();

pub(crate) fn record(operation: &'static str, took: Duration, failed: bool) {
    let name = name(operation);
    TOOK.observe(name, took.as_secs_f64());
    CALLS.count([name]);
    if failed {
        FAILED.count([name]);
    }
}

/// Writes all of them.
pub fn write(text: &mut Text) {
    let label = "operation_type";
    CALLS.write(text, "kubelet_runtime_operations_total", [label], "Calls to the container runtime");
    let help = "Calls to the container runtime that failed";
    FAILED.write(text, "kubelet_runtime_operations_errors_total", [label], help);
    let help = "How long calls to the container runtime took";
    TOOK.write(text, "kubelet_runtime_operations_duration_seconds", label, help);
}

/// What the kubelet calls an operation; dashboards and alerts know these.
fn name(operation: &'static str) -> &'static str {
    match operation {
        "get version of" => "version",
        "get status of" => "status",
        "get configuration of" => "runtime_config",
        "update pod addresses of" => "update_runtime_config",
        "create container" => "create_container",
        "start container" => "start_container",
        "stop container" => "stop_container",
        "remove container" => "remove_container",
        "list containers of" => "list_containers",
        "get status of container" => "container_status",
        "update resources of container" => "update_container",
        "reopen log of container" => "reopen_container_log",
        "run a command in container" => "exec_sync",
        "prepare a command in container" => "exec",
        "attach to container" => "attach",
        "run sandbox of pod" => "run_podsandbox",
        "stop sandbox" => "stop_podsandbox",
        "remove sandbox" => "remove_podsandbox",
        "get status of sandbox" => "podsandbox_status",
        "list sandboxes of" => "list_podsandbox",
        "forward ports of sandbox" => "port_forward",
        "list container stats of" => "list_container_stats",
        "pull image" => "pull_image",
        "get status of image" => "image_status",
        "list images of" => "list_images",
        "remove image" => "remove_image",
        "get image file systems of" => "image_fs_info",
        other => other,
    }
}
