//! /metrics/resource: what metrics-server asks for.

use jiff::Timestamp;

use super::report::{ContainerReport, PodReport, Report};
use keelson_kit::metrics::{Kind, Text};

pub fn write(report: &Report) -> String {
    let mut text = Text::measured_at(report.at.as_millisecond());
    type OfContainer = fn(&ContainerReport) -> Option<f64>;
    let of_containers: [(&'static str, Kind, &str, OfContainer); 5] = [
        (
            "container_cpu_usage_seconds_total",
            Kind::Counter,
            "Processor time used by the container in seconds",
            |c| c.usage.cpu_nanos.map(seconds),
        ),
        ("container_memory_working_set_bytes", Kind::Gauge, "Working set of the container in bytes", |c| {
            c.usage.working_set.map(float)
        }),
        (
            "container_start_time_seconds",
            Kind::Gauge,
            "When the container started, in seconds since the epoch",
            |c| c.started.or(Some(c.created)).map(since_epoch),
        ),
        ("container_swap_limit_bytes", Kind::Gauge, "Swap that the container may use in bytes", |c| {
            c.usage.swap_limit.map(float)
        }),
        ("container_swap_usage_bytes", Kind::Gauge, "Swap used by the container in bytes", |c| {
            c.usage.swap.map(float)
        }),
    ];
    for (name, kind, help, value) in of_containers {
        text.family(name, kind, help);
        for pod in &report.pods {
            for c in &pod.containers {
                let labels = [
                    ("container", c.name.as_str()),
                    ("namespace", pod.namespace.as_str()),
                    ("pod", pod.name.as_str()),
                ];
                text.known(&labels, value(c));
            }
        }
    }
    let node = &report.node.usage;
    text.family("node_cpu_usage_seconds_total", Kind::Counter, "Processor time used by the node in seconds");
    text.known(&[], node.cpu_nanos.map(seconds));
    text.family("node_memory_working_set_bytes", Kind::Gauge, "Working set of the node in bytes");
    text.known(&[], node.working_set);
    text.family("node_swap_usage_bytes", Kind::Gauge, "Swap used by the node in bytes");
    text.known(&[], node.swap);
    type OfPod = fn(&PodReport) -> Option<f64>;
    let of_pods: [(&'static str, Kind, &str, OfPod); 3] = [
        ("pod_cpu_usage_seconds_total", Kind::Counter, "Processor time used by the pod in seconds", |p| {
            p.usage.cpu_nanos.map(seconds)
        }),
        ("pod_memory_working_set_bytes", Kind::Gauge, "Working set of the pod in bytes", |p| {
            p.usage.working_set.map(float)
        }),
        ("pod_swap_usage_bytes", Kind::Gauge, "Swap used by the pod in bytes", |p| p.usage.swap.map(float)),
    ];
    for (name, kind, help, value) in of_pods {
        text.family(name, kind, help);
        for pod in &report.pods {
            text.known(&[("namespace", &pod.namespace), ("pod", &pod.name)], value(pod));
        }
    }
    text.not_measured();
    let help = "1 if something could not be measured, 0 otherwise";
    text.single("resource_scrape_error", Kind::Gauge, help, u8::from(report.incomplete));
    text.single("scrape_error", Kind::Gauge, help, u8::from(report.incomplete));
    text.finish()
}

#[expect(clippy::cast_precision_loss, reason = "the format's numbers are floats")]
pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "the format's numbers are floats")]
pub(super) fn float(n: u64) -> f64 {
    n as f64
}

#[expect(clippy::cast_precision_loss, reason = "the format's numbers are floats")]
pub(super) fn since_epoch(at: Timestamp) -> f64 {
    at.as_millisecond() as f64 / 1e3
}
