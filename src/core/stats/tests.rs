use jiff::Timestamp;
use serde_json::{Value, json};

use super::report::{ContainerReport, NodeReport, PodReport, Report};
use super::usage::{Counted, Device};
use super::*;

fn report() -> Report {
    let at: Timestamp = "2026-01-02T03:04:05.6Z".parse().expect("time");
    let usage = Usage {
        cpu_nanos: Some(2_500_000_000),
        memory: Some(1000),
        working_set: Some(600),
        memory_limit: Some(2000),
        processes: Some(3),
        devices: vec![Device { major: 8, minor: 16, read_bytes: 5, ..Device::default() }],
        pressures: Pressures { io: Some(Pressure::default()), ..Pressures::default() },
        ..Usage::default()
    };
    let eth0 = Interface {
        name: "eth0".into(),
        received: Counted { bytes: 7, ..Counted::default() },
        ..Interface::default()
    };
    let container = ContainerReport {
        id: "c1".into(),
        name: "main".into(),
        image: "app:1".into(),
        created: at,
        started: Some(at),
        cgroup: "/kubepods/podu/c1".into(),
        usage: usage.clone(),
    };
    let pod = PodReport {
        uid: "u".into(),
        namespace: "ns".into(),
        name: "web".into(),
        created: at,
        cgroup: "/kubepods/podu".into(),
        usage: usage.clone(),
        interfaces: Some(vec![eth0.clone(), Interface { name: "lo".into(), ..eth0 }]),
        containers: vec![container],
    };
    let node = NodeReport { name: "n".into(), booted: at, usage, ..NodeReport::default() };
    Report { at, node, pods: vec![pod], incomplete: false }
}

/// Every line is a comment or a sample, every sample belongs to the family before it, no sample comes twice.
fn parse(text: &str) -> Vec<(String, f64)> {
    let (mut samples, mut family): (Vec<(String, f64)>, _) = (Vec::new(), String::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().expect("name").to_owned();
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (series, value) = match line.rsplit_once('}') {
            Some((series, rest)) => (format!("{series}}}"), rest.trim()),
            None => line.split_once(' ').map(|(s, v)| (s.to_owned(), v)).expect("sample"),
        };
        assert!(series.starts_with(&family), "{series} in {family}");
        assert!(!samples.iter().any(|(s, _)| *s == series), "{series} twice");
        let value = value.split(' ').next().and_then(|v| v.parse().ok()).expect("number");
        samples.push((series, value));
    }
    samples
}

fn value(samples: &[(String, f64)], series: &str) -> Option<f64> {
    samples.iter().find(|(s, _)| s == series).map(|(_, v)| *v)
}

#[test]
fn resource_metrics_are_what_metrics_server_reads() {
    let text = resource::write(&report());
    let samples = parse(&text);
    let of = "{container=\"main\",namespace=\"ns\",pod=\"web\"}";
    assert_eq!(value(&samples, &format!("container_cpu_usage_seconds_total{of}")), Some(2.5));
    assert_eq!(value(&samples, &format!("container_memory_working_set_bytes{of}")), Some(600.0));
    assert_eq!(value(&samples, "node_cpu_usage_seconds_total"), Some(2.5));
    assert_eq!(value(&samples, "pod_memory_working_set_bytes{namespace=\"ns\",pod=\"web\"}"), Some(600.0));
    assert_eq!(value(&samples, "resource_scrape_error"), Some(0.0));
    assert!(text.contains(&format!("container_cpu_usage_seconds_total{of} 2.5 1767323045600\n")), "{text}");
    assert_eq!(value(&samples, "node_swap_usage_bytes"), None, "nothing is made up");
}

#[test]
fn cadvisor_metrics_have_the_labels_that_dashboards_select_by() {
    let machine =
        cadvisor::MachineMetrics { cpus: 2, memory_bytes: 4096, swap_bytes: 0, kernel: "6", os: "x" };
    let samples = parse(&cadvisor::write(&report(), &machine));
    let container = "container=\"main\",id=\"/kubepods/podu/c1\",image=\"app:1\",name=\"c1\",namespace=\"ns\",pod=\"web\"";
    let pod = "container=\"\",id=\"/kubepods/podu\",image=\"\",name=\"\",namespace=\"ns\",pod=\"web\"";
    let get = |series: String| value(&samples, &series);
    let cpu = "container=\"main\",cpu=\"total\",id=\"/kubepods/podu/c1\"";
    assert!(
        samples
            .iter()
            .any(|(s, v)| s.starts_with(&format!("container_cpu_usage_seconds_total{{{cpu}")) && *v == 2.5)
    );
    assert_eq!(get(format!("container_memory_working_set_bytes{{{container}}}")), Some(600.0));
    assert_eq!(get(format!("container_memory_working_set_bytes{{{pod}}}")), Some(600.0));
    assert_eq!(get(format!("container_spec_memory_limit_bytes{{{container}}}")), Some(2000.0));
    assert_eq!(get(format!("container_network_receive_bytes_total{{{pod},interface=\"eth0\"}}")), Some(7.0));
    assert_eq!(get(format!("container_network_receive_bytes_total{{{pod},interface=\"lo\"}}")), None);
    assert_eq!(get(format!("container_fs_reads_bytes_total{{{container},device=\"8:16\"}}")), Some(5.0));
    assert_eq!(get(format!("container_pressure_io_waiting_seconds_total{{{pod}}}")), Some(0.0));
    assert_eq!(get("machine_cpu_cores".into()), Some(2.0));
}

#[test]
fn a_summary_has_the_api_s_shape() {
    let report = report();
    let pod = &report.pods[0];
    let shown = summary::PodStats {
        pod_ref: summary::PodRef {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            uid: pod.uid.clone(),
        },
        start_time: pod.created,
        containers: vec![],
        usage: summary::UsageStats::of(&pod.usage, Some(5), report.at),
        network: summary::NetworkStats::of(pod.interfaces.as_deref().expect("interfaces"), report.at),
        volumes: vec![summary::VolumeFsStats {
            fs: summary::FsStats::of(Filesystem { used: Some(9), ..Filesystem::default() }, report.at),
            name: "data".into(),
            claim: None,
        }],
        ephemeral_storage: None,
        processes: Some(summary::ProcessStats { process_count: 3 }),
    };
    let time = "2026-01-02T03:04:05Z";
    let psi = json!({"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0});
    let interface = json!({"name": "eth0", "rxBytes": 7, "rxErrors": 0, "txBytes": 0, "txErrors": 0});
    let mut network = interface.clone();
    network["time"] = json!(time);
    network["interfaces"] = json!([interface]);
    let expected = json!({
        "podRef": {"name": "web", "namespace": "ns", "uid": "u"},
        "startTime": time, "containers": [],
        "cpu": {"time": time, "usageNanoCores": 5, "usageCoreNanoSeconds": 2_500_000_000u64},
        "memory": {"time": time, "availableBytes": 1400, "usageBytes": 1000, "workingSetBytes": 600},
        "io": {"time": time, "psi": {"full": psi, "some": psi}},
        "network": network,
        "volume": [{"time": time, "usedBytes": 9, "name": "data"}],
        "process_stats": {"process_count": 3},
    });
    let found: Value = serde_json::to_value(&shown).expect("json");
    assert_eq!(found, expected);
}
