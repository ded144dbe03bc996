//! Reads the cgroups and interfaces of everything that runs. Blocks, for microseconds a file.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use keelson_core::stats::Usage;
use keelson_core::stats::report::{ContainerReport, NodeReport, PodReport, Report};
use keelson_host::cgroup::Detail;
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
    let mut usage = ctx.cgroups.usage(&path, detail)?;
    let below = ctx.cgroups.below(&path);
    let sandbox = record.sandbox.as_ref()?;
    let mut containers = Vec::new();
    for c in record.running() {
        let Some(own) = find(&below, c.id.as_str()).map(|name| path.join(name)) else { continue };
        let Some(mut usage) = ctx.cgroups.usage(&own, detail) else { continue };
        if detail == Detail::Everything {
            usage.processes = processes(ctx, &own, &ctx.cgroups.below(&own)).map(|(count, _)| count);
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
        let found = processes(ctx, &path, &below);
        usage.processes = found.as_ref().map(|(count, _)| *count);
        // The sandbox's process holds the network of all containers.
        interfaces = found.filter(|_| !sandbox.host_network).and_then(|(_, firsts)| {
            let at = below.iter().position(|name| name.contains(sandbox.id.as_str()))?;
            interfaces_of(PROC.as_ref(), *firsts.get(at)?.as_ref()?)
        });
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

/// How many processes a cgroup and those directly below it have, and the first one of each of the latter.
fn processes(ctx: &Context, path: &Path, below: &[String]) -> Option<(u64, Vec<Option<u32>>)> {
    let mut count = ctx.cgroups.members(path)?.count;
    let members = |name: &String| ctx.cgroups.members(&path.join(name)).unwrap_or_default();
    let firsts = below.iter().map(members).map(|found| {
        count += found.count;
        found.first
    });
    let firsts = firsts.collect();
    Some((count, firsts))
}

/// Runtimes name a container's cgroup by its id, with something around it that differs: `ID`, `cri-containerd-ID.scope`,
/// `crio-ID`.
fn find<'a>(names: &'a [String], id: &str) -> Option<&'a str> {
    names.iter().map(String::as_str).find(|name| name.contains(id))
}

fn shown(path: &Path) -> String {
    format!("/{}", path.display())
}
