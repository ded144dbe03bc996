//! Reads the cgroups and interfaces of everything that runs. Blocks, for microseconds a file.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use keelson_core::stats::Usage;
use keelson_core::stats::report::{ContainerReport, NodeReport, PodReport, Report};
use keelson_host::cgroup::{Detail, Spot};
use keelson_host::stats::{filesystem, interfaces_of, own_cgroup, read_node};

use crate::context::Context;
use crate::inventory::PodRecord;

const PROC: &str = "/proc";

pub(super) fn gather(ctx: &Context, detail: Detail) -> Report {
    let mut incomplete = false;
    let mut pods = Vec::new();
    for record in ctx.inventory.all() {
        if !record.sandbox.as_ref().is_some_and(|s| s.ready) {
            continue;
        }
        match pod(ctx, &record, detail) {
            Some(report) => pods.push(report),
            // It may have ended since its worker looked.
            None => incomplete |= ctx.inventory.get(&record.uid).is_some_and(|now| now == record),
        }
    }
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let mut node = node(ctx, detail);
    incomplete |= node.usage.cpu_nanos.is_none();
    node.name = ctx.settings.node_name.clone();
    Report { at: Timestamp::now(), node, pods, incomplete }
}

fn node(ctx: &Context, detail: Detail) -> NodeReport {
    let found = read_node(PROC.as_ref(), &ctx.cgroups);
    let fs = (detail > Detail::CpuAndMemory).then(|| filesystem(&ctx.settings.root_dir)).flatten();
    NodeReport {
        name: String::new(),
        booted: found.booted,
        usage: found.usage,
        interfaces: found.interfaces,
        fs,
        system: system(ctx),
    }
}

/// The cgroups of the node's own parts, as far as they have one of their own.
fn system(ctx: &Context) -> Vec<(&'static str, Usage)> {
    let named = |path: &str| {
        let path = path.trim_matches('/');
        (!path.is_empty() && !path.split('/').any(|p| p == "..")).then(|| PathBuf::from(path))
    };
    let config = &ctx.settings.kubelet;
    let own = named(&config.kubelet_cgroups).or_else(|| own_cgroup(PROC.as_ref()));
    let runtime = ctx.settings.runtime_cgroups.as_deref().and_then(named);
    let parts = [("kubelet", own), ("runtime", runtime), ("pods", ctx.cgroups.all_pods_place())];
    let usage = |path: PathBuf| ctx.cgroups.usage(&path, Detail::CpuAndMemory);
    parts.into_iter().filter_map(|(name, path)| Some((name, usage(path?)?))).collect()
}

fn pod(ctx: &Context, record: &PodRecord, detail: Detail) -> Option<PodReport> {
    let path = ctx.cgroups.pod_place(&record.uid, record.qos)?;
    let mut spot = ctx.cgroups.at(&path);
    let mut usage = spot.usage("", detail)?;
    let below = spot.below();
    let sandbox = record.sandbox.as_ref()?;
    let mut containers = Vec::new();
    for c in record.running() {
        let Some(name) = find(&below, c.id.as_str()) else { continue };
        let Some(mut usage) = spot.usage(name, detail) else { continue };
        let own = path.join(name);
        if detail == Detail::Everything {
            usage.processes = all_processes(&mut ctx.cgroups.at(&own));
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
            let found = spot.members(name).unwrap_or_default();
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
fn all_processes(spot: &mut Spot) -> Option<u64> {
    let own = spot.members("")?.count;
    let below = spot.below();
    Some(own + below.iter().filter_map(|name| spot.members(name)).map(|found| found.count).sum::<u64>())
}

/// Runtimes name a container's cgroup by its id, with something around it that differs: `ID`, `cri-containerd-ID.scope`,
/// `crio-ID`.
fn find<'a>(names: &'a [String], id: &str) -> Option<&'a str> {
    names.iter().map(String::as_str).find(|name| name.contains(id))
}

fn shown(path: &Path) -> String {
    format!("/{}", path.display())
}
