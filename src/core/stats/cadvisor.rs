//! /metrics/cadvisor: the families that dashboards are made of, with the labels that they select by. A pod's own cgroup
//! has an empty container and image, which is how sums over containers leave it out.

use super::report::{ContainerReport, PodReport, Report};
use super::resource::{float, seconds, since_epoch};
use super::usage::{Counted, Device, Interface, Pressures, Usage, counts_as_traffic};
use keelson_kit::metrics::{Kind, Text};

/// What a value is of.
struct Line<'a> {
    labels: Labels<'a>,
    usage: &'a Usage,
    container: Option<&'a ContainerReport>,
}

type Value = fn(&Usage) -> Option<f64>;

type Labels<'a> = [(&'a str, &'a str); 6];

const VALUES: &[(&str, Kind, &str, Value)] = &[
    ("container_cpu_user_seconds_total", Kind::Counter, "Processor time in user mode", |u| {
        u.cpu_user_nanos.map(seconds)
    }),
    ("container_cpu_system_seconds_total", Kind::Counter, "Processor time in the kernel", |u| {
        u.cpu_system_nanos.map(seconds)
    }),
    ("container_cpu_cfs_periods_total", Kind::Counter, "Periods in which the quota was enforced", |u| {
        u.cfs_periods.map(float)
    }),
    ("container_cpu_cfs_throttled_periods_total", Kind::Counter, "Periods in which it was throttled", |u| {
        u.cfs_throttled_periods.map(float)
    }),
    ("container_cpu_cfs_throttled_seconds_total", Kind::Counter, "Time for which it was throttled", |u| {
        u.cfs_throttled_nanos.map(seconds)
    }),
    ("container_memory_usage_bytes", Kind::Gauge, "Memory in use, page cache included", |u| {
        u.memory.map(float)
    }),
    ("container_memory_working_set_bytes", Kind::Gauge, "Memory that cannot be reclaimed easily", |u| {
        u.working_set.map(float)
    }),
    ("container_memory_rss", Kind::Gauge, "Anonymous memory in bytes", |u| u.rss.map(float)),
    ("container_memory_cache", Kind::Gauge, "Page cache in bytes", |u| u.cache.map(float)),
    ("container_memory_mapped_file", Kind::Gauge, "Mapped files in bytes", |u| u.mapped_file.map(float)),
    ("container_memory_kernel_usage", Kind::Gauge, "Memory of the kernel in bytes", |u| u.kernel.map(float)),
    ("container_memory_swap", Kind::Gauge, "Swap in use in bytes", |u| u.swap.map(float)),
    ("container_memory_max_usage_bytes", Kind::Gauge, "The most memory that was in use", |u| {
        u.memory_peak.map(float)
    }),
    ("container_memory_failcnt", Kind::Counter, "How often the memory limit was hit", |u| {
        u.memory_failures.map(float)
    }),
    ("container_oom_events_total", Kind::Counter, "Processes killed for lack of memory", |u| {
        u.oom_kills.map(float)
    }),
    ("container_processes", Kind::Gauge, "Processes", |u| u.processes.map(float)),
    ("container_threads", Kind::Gauge, "Threads", |u| u.threads.map(float)),
    ("container_threads_max", Kind::Gauge, "Threads that there may be, 0 for no limit", |u| {
        u.threads.map(|_| float(u.threads_limit.unwrap_or(0)))
    }),
    ("container_spec_cpu_period", Kind::Gauge, "Length of a period in microseconds", |u| {
        u.cpu_period_micros.map(float)
    }),
    ("container_spec_cpu_quota", Kind::Gauge, "Processor time a period in microseconds", |u| {
        u.cpu_quota_micros.and_then(|q| u64::try_from(q).ok()).map(float)
    }),
    ("container_spec_cpu_shares", Kind::Gauge, "Share of the processors", |u| u.cpu_shares.map(float)),
    ("container_spec_memory_limit_bytes", Kind::Gauge, "Memory limit, 0 for none", |u| {
        u.memory.map(|_| float(u.memory_limit.unwrap_or(0)))
    }),
];

pub fn write(report: &Report, machine: &MachineMetrics) -> String {
    let mut text = Text::measured_at(report.at.as_millisecond());
    let lines = lines(report);
    text.family("container_cpu_usage_seconds_total", Kind::Counter, "Processor time used in seconds");
    for line in &lines {
        let [container, id, image, name, namespace, pod] = line.labels;
        let labels = [container, ("cpu", "total"), id, image, name, namespace, pod];
        text.known(&labels, line.usage.cpu_nanos.map(seconds));
    }
    for (name, kind, help, value) in VALUES {
        text.family(name, *kind, help);
        for line in &lines {
            text.known(&line.labels, value(line.usage));
        }
    }
    memory_failures(&mut text, &lines);
    pressure(&mut text, &lines);
    devices(&mut text, &lines);
    network(&mut text, report);
    text.family("container_start_time_seconds", Kind::Gauge, "When it started, in seconds since the epoch");
    for line in &lines {
        let started = line.container.map(|c| since_epoch(c.started.unwrap_or(c.created)));
        text.known(&line.labels, started);
    }
    text.family("container_last_seen", Kind::Gauge, "When it was last seen, in seconds since the epoch");
    for line in &lines {
        text.sample(&line.labels, report.at.as_second());
    }
    filesystem(&mut text, report);
    text.not_measured();
    text.single("machine_cpu_cores", Kind::Gauge, "Logical processors", machine.cpus);
    text.single("machine_memory_bytes", Kind::Gauge, "Memory in bytes", machine.memory_bytes);
    text.single("machine_swap_bytes", Kind::Gauge, "Swap in bytes", machine.swap_bytes);
    text.family("cadvisor_version_info", Kind::Gauge, "What this machine runs; always 1");
    let labels = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", machine.kernel),
        ("osVersion", machine.os),
    ];
    text.sample(&labels, 1);
    let help = "1 if something could not be measured, 0 otherwise";
    text.single("container_scrape_error", Kind::Gauge, help, u8::from(report.incomplete));
    text.finish()
}

#[derive(Debug, Clone, Copy)]
pub struct MachineMetrics<'a> {
    pub cpus: u64,
    pub memory_bytes: u64,
    pub swap_bytes: u64,
    pub kernel: &'a str,
    pub os: &'a str,
}

fn lines(report: &Report) -> Vec<Line<'_>> {
    let node = Line { labels: labels("", "/", "", "", "", ""), usage: &report.node.usage, container: None };
    let mut lines = vec![node];
    for pod in &report.pods {
        lines.push(Line { labels: of_pod(pod), usage: &pod.usage, container: None });
        for c in &pod.containers {
            let labels = labels(&c.name, &c.cgroup, &c.image, &c.id, &pod.namespace, &pod.name);
            lines.push(Line { labels, usage: &c.usage, container: Some(c) });
        }
    }
    lines
}

fn of_pod(pod: &PodReport) -> Labels<'_> {
    labels("", &pod.cgroup, "", "", &pod.namespace, &pod.name)
}

fn labels<'a>(
    container: &'a str,
    id: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
) -> Labels<'a> {
    [
        ("container", container),
        ("id", id),
        ("image", image),
        ("name", name),
        ("namespace", namespace),
        ("pod", pod),
    ]
}

fn with<'a>(labels: &Labels<'a>, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [labels.as_slice(), more].concat()
}

fn memory_failures(text: &mut Text, lines: &[Line<'_>]) {
    text.family("container_memory_failures_total", Kind::Counter, "Page faults");
    for line in lines {
        for (kind, value) in
            [("pgfault", line.usage.page_faults), ("pgmajfault", line.usage.major_page_faults)]
        {
            let labels = with(&line.labels, &[("failure_type", kind), ("scope", "hierarchy")]);
            text.known(&labels, value);
        }
    }
}

fn pressure(text: &mut Text, lines: &[Line<'_>]) {
    type Total = fn(&Pressures) -> Option<u64>;
    let families: [(&'static str, &str, Total); 6] = [
        ("container_pressure_cpu_waiting_seconds_total", "Time in which some waited for a processor", |p| {
            p.cpu.map(|p| p.some.total_micros)
        }),
        ("container_pressure_cpu_stalled_seconds_total", "Time in which all waited for a processor", |p| {
            p.cpu.map(|p| p.full.total_micros)
        }),
        ("container_pressure_memory_waiting_seconds_total", "Time in which some waited for memory", |p| {
            p.memory.map(|p| p.some.total_micros)
        }),
        ("container_pressure_memory_stalled_seconds_total", "Time in which all waited for memory", |p| {
            p.memory.map(|p| p.full.total_micros)
        }),
        ("container_pressure_io_waiting_seconds_total", "Time in which some waited for a device", |p| {
            p.io.map(|p| p.some.total_micros)
        }),
        ("container_pressure_io_stalled_seconds_total", "Time in which all waited for a device", |p| {
            p.io.map(|p| p.full.total_micros)
        }),
    ];
    for (name, help, total) in families {
        text.family(name, Kind::Counter, help);
        for line in lines {
            let micros = total(&line.usage.pressures);
            text.known(&line.labels, micros.map(|m| seconds(m.saturating_mul(1000))));
        }
    }
}

fn devices(text: &mut Text, lines: &[Line<'_>]) {
    type Count = fn(&Device) -> u64;
    let families: [(&'static str, &str, Count); 4] = [
        ("container_fs_reads_bytes_total", "Bytes read from a device", |d| d.read_bytes),
        ("container_fs_writes_bytes_total", "Bytes written to a device", |d| d.written_bytes),
        ("container_fs_reads_total", "Reads from a device", |d| d.reads),
        ("container_fs_writes_total", "Writes to a device", |d| d.writes),
    ];
    for (name, help, count) in families {
        text.family(name, Kind::Counter, help);
        for line in lines {
            for device in &line.usage.devices {
                let number = format!("{}:{}", device.major, device.minor);
                text.sample(&with(&line.labels, &[("device", &number)]), count(device));
            }
        }
    }
}

fn network(text: &mut Text, report: &Report) {
    type Count = fn(&Counted) -> u64;
    let kinds: [(&'static str, &'static str, &str, Count); 4] = [
        ("container_network_receive_bytes_total", "container_network_transmit_bytes_total", "Bytes", |c| {
            c.bytes
        }),
        (
            "container_network_receive_packets_total",
            "container_network_transmit_packets_total",
            "Packets",
            |c| c.packets,
        ),
        (
            "container_network_receive_packets_dropped_total",
            "container_network_transmit_packets_dropped_total",
            "Dropped packets",
            |c| c.dropped,
        ),
        (
            "container_network_receive_errors_total",
            "container_network_transmit_errors_total",
            "Errors",
            |c| c.errors,
        ),
    ];
    let root = labels("", "/", "", "", "", "");
    let mut sources: Vec<(Labels<'_>, &[Interface])> = vec![(root, &report.node.interfaces)];
    sources.extend(report.pods.iter().filter_map(|p| Some((of_pod(p), p.interfaces.as_deref()?))));
    for (received, sent, what, count) in kinds {
        for (name, verb, is_sent) in [(received, "received", false), (sent, "sent", true)] {
            text.family(name, Kind::Counter, &format!("{what} {verb}"));
            for (labels, interfaces) in &sources {
                for i in interfaces.iter().filter(|i| counts_as_traffic(&i.name)) {
                    let counted = if is_sent { &i.sent } else { &i.received };
                    text.sample(&with(labels, &[("interface", &i.name)]), count(counted));
                }
            }
        }
    }
}

fn filesystem(text: &mut Text, report: &Report) {
    let Some(fs) = &report.node.fs else { return };
    let labels = with(&labels("", "/", "", "", "", ""), &[("device", "/")]);
    for (name, help, value) in [
        ("container_fs_usage_bytes", "Bytes in use on the filesystem", fs.used),
        ("container_fs_limit_bytes", "Size of the filesystem in bytes", fs.capacity),
        ("container_fs_inodes_free", "Inodes that are free", fs.inodes_free),
        ("container_fs_inodes_total", "Inodes that there are", fs.inodes),
    ] {
        text.family(name, Kind::Gauge, help);
        text.known(&labels, value);
    }
}
