//! What the node's metrics endpoints answer.

use std::path::Path;
use std::sync::Arc;

use keelson_core::stats::{cadvisor, resource};
use keelson_host::cgroup::Detail;
use keelson_host::stats::own_process;
use keelson_kit::metrics::{Kind, Text};

use crate::node::Node;
use crate::report::stats;

/// What the agent counts about itself.
pub fn own(node: &Node) -> Text {
    let mut text = Text::default();
    node.reports.metrics.write(&mut text, &node.settings.node_name, &node.registry.running());
    let statuses: Vec<_> = node.registry.desired().into_iter().filter_map(|record| record.status).collect();
    node.reports.metrics.resizes.write(&mut text, statuses.iter().map(|status| &**status));
    node.managers.write_metrics(&mut text);
    keelson_cri::operations::write(&mut text);
    keelson_apiserver::requests::write(&mut text);
    text.family("kubernetes_build_info", Kind::Gauge, "Which version this is; always 1");
    text.sample(&[("git_version", concat!("v", env!("CARGO_PKG_VERSION"))), ("platform", "linux")], 1);
    if let Some(own) = own_process(Path::new("/proc")) {
        let seconds = "Processor time of this process in seconds";
        text.single("process_cpu_seconds_total", Kind::Counter, seconds, own.cpu_seconds);
        text.single("process_resident_memory_bytes", Kind::Gauge, "Resident memory", own.resident_bytes);
        text.single("process_virtual_memory_bytes", Kind::Gauge, "Virtual memory", own.virtual_bytes);
        text.single("process_open_fds", Kind::Gauge, "Open file descriptors", own.open_files);
        if let Some(most) = own.most_files {
            text.single("process_max_fds", Kind::Gauge, "File descriptors that may be open", most);
        }
        let since = "When this process started, in seconds since the epoch";
        text.single("process_start_time_seconds", Kind::Gauge, since, own.started);
    }
    text
}

pub async fn resources(node: &Arc<Node>) -> Option<String> {
    let report = stats::report(node, Detail::CpuAndMemory).await?;
    Some(resource::write(&report))
}

pub async fn containers(node: &Arc<Node>) -> Option<String> {
    let report = stats::report(node, Detail::Everything).await?;
    let machine = cadvisor::MachineMetrics {
        cpus: u64::try_from(node.machine.node_capacity().milli_cpu / 1000).unwrap_or(0),
        memory_bytes: report.node.usage.memory_limit.unwrap_or(0),
        swap_bytes: report.node.usage.swap_limit.unwrap_or(0),
        kernel: "",
        os: "",
    };
    Some(cadvisor::write(&report, &machine))
}

pub fn probes(node: &Node) -> String {
    let mut text = Text::default();
    node.reports.metrics.write_probes(&mut text);
    text.finish()
}
