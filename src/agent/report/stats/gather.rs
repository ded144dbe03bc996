//! Reads the cgroups and interfaces of everything that runs. Blocks, for microseconds a file.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use keelson_core::stats::Usage;
use keelson_core::stats::report::{ContainerReport, NodeReport, PodReport, Report};
use keelson_host::cgroup::{CgroupDir, Detail};
use keelson_host::stats::{filesystem, interfaces_of, own_cgroup, read_node};

use crate::node::Node;
use crate::registry::RuntimePod;

const PROC: &str = "/proc";

pub(super) fn gather(node: &Node, detail: Detail) -> Report {
    let mut incomplete = false;
    let mut pods = Vec::new();
    for record in node.registry.running() {
        if !record.sandbox.as_ref().is_some_and(|s| s.ready) {
            continue;
        }
        match pod(node, &record, detail) {
            Some(report) => pods.push(report),
            // It may have ended since its worker observed it.
            None => {
                let now = node.registry.get(&record.uid).and_then(|now| now.running);
                incomplete |= now.is_some_and(|now| now == record);
            }
        }
    }
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let mut whole = node_report(node, detail);
    incomplete |= whole.usage.cpu_nanos.is_none();
    whole.name = node.settings.node_name.clone();
    Report { at: Timestamp::now(), node: whole, pods, incomplete }
}

fn node_report(node: &Node, detail: Detail) -> NodeReport {
    let found = read_node(PROC.as_ref(), &node.cgroups);
    let fs = (detail > Detail::CpuAndMemory).then(|| filesystem(&node.settings.paths.root_dir)).flatten();
    NodeReport {
        name: String::new(),
        booted: found.booted,
        usage: found.usage,
        interfaces: found.interfaces,
        fs,
        system: system(node),
    }
}

/// The cgroups of the node's own parts, as far as they have one of their own.
fn system(node: &Node) -> Vec<(&'static str, Usage)> {
    let named = |path: &str| {
        let path = path.trim_matches('/');
        (!path.is_empty() && !path.split('/').any(|p| p == "..")).then(|| PathBuf::from(path))
    };
    let config = &node.settings.kubelet;
    let own = named(&config.kubelet_cgroups).or_else(|| own_cgroup(PROC.as_ref()));
    let runtime = node.settings.runtime_cgroups.as_deref().and_then(named);
    let parts = [("kubelet", own), ("runtime", runtime), ("pods", node.cgroups.all_pods_place())];
    let usage = |path: PathBuf| node.cgroups.usage(&path, Detail::CpuAndMemory);
    parts.into_iter().filter_map(|(name, path)| Some((name, usage(path?)?))).collect()
}

fn pod(node: &Node, record: &RuntimePod, detail: Detail) -> Option<PodReport> {
    let path = node.cgroups.pod_place(&record.uid, record.qos)?;
    let mut dir = node.cgroups.at(&path);
    let mut usage = dir.usage("", detail)?;
    let below = dir.below();
    let sandbox = record.sandbox.as_ref()?;
    let mut containers = Vec::new();
    for c in record.running() {
        let Some(name) = find(&below, c.id.as_str()) else { continue };
        let Some(mut usage) = dir.usage(name, detail) else { continue };
        let own = path.join(name);
        if detail == Detail::Everything {
            usage.processes = all_processes(&mut node.cgroups.at(&own));
        }
        containers.push(ContainerReport {
            id: c.id.to_string(),
            name: c.name.clone(),
            image: c.image.clone(),
            created: c.created_at,
            started: c.started_at,
            cgroup: shown(&own),
            usage,
        });
    }
    containers.reverse(); // oldest first
    let mut interfaces = None;
    if detail > Detail::CpuAndMemory {
        let mut processes = 0;
        for name in &below {
            let found = dir.members(name).unwrap_or_default();
            processes += found.count;
            // The sandbox's process holds the network of all containers.
            if !sandbox.host_network && name.contains(sandbox.id.as_str()) {
                interfaces = found.first.and_then(|process| interfaces_of(PROC.as_ref(), process));
            }
        }
        usage.processes = Some(processes);
    }
    Some(PodReport {
        uid: record.uid.to_string(),
        namespace: record.namespace.clone(),
        name: record.name.clone(),
        created: sandbox.created_at,
        cgroup: shown(&path),
        usage,
        interfaces,
        containers,
    })
}

/// Of a container, whose processes may be in cgroups of their own below it.
fn all_processes(dir: &mut CgroupDir) -> Option<u64> {
    let own = dir.members("")?.count;
    let below = dir.below();
    Some(own + below.iter().filter_map(|name| dir.members(name)).map(|found| found.count).sum::<u64>())
}

/// Runtimes name a container's cgroup by its id, with something around it that differs: `ID`, `cri-containerd-ID.scope`,
/// `crio-ID`.
fn find<'a>(names: &'a [String], id: &str) -> Option<&'a str> {
    names.iter().map(String::as_str).find(|name| name.contains(id))
}

fn shown(path: &Path) -> String {
    format!("/{}", path.display())
}
