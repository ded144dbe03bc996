//! Makes the summary of a report: adds rates, and with them what disks hold and what only the runtime knows.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use keelson_core::ids::PodUid;
use keelson_core::stats::report::{ContainerReport, PodReport, Report};
use keelson_core::stats::summary::{
    ContainerStats, FsStats, NetworkStats, NodeStats, PodRef, PodStats, ProcessStats, RlimitStats,
    RuntimeStats, Summary, UsageStats, VolumeFsStats,
};
use keelson_core::stats::{Filesystem, Usage};
use keelson_cri::proto::FilesystemUsage;
use keelson_host::files;
use keelson_host::stats::{filesystem, log_bytes, processes};
use keelson_volumes::VolumeStats;

use super::volumes;
use crate::node::Node;

/// What only the runtime can measure, by container id: bytes and inodes of the writable layer, and its own measure of the
/// processor in use.
#[derive(Default)]
pub(super) struct RuntimeMeasures {
    layers: HashMap<String, (Option<u64>, Option<u64>)>,
    rates: HashMap<String, u64>,
    image_fs: Option<Filesystem>,
    container_fs: Option<Filesystem>,
}

pub(super) async fn build(
    node: &Arc<Node>,
    report: Report,
    measures: RuntimeMeasures,
    brief: bool,
) -> Summary {
    let node = node.clone();
    let volumes = if brief { HashMap::new() } else { volumes::of_pods(&node, &report).await };
    let built = tokio::task::spawn_blocking(move || {
        Builder { node: &node, measures, volumes, brief, report: &report }.build()
    })
    .await;
    // A panic in there is a mistake of ours; an empty summary is the least harm.
    built.unwrap_or_else(|_| Summary { node: empty_node(), pods: vec![] })
}

pub(super) async fn ask(node: &Node) -> RuntimeMeasures {
    let mut measures = RuntimeMeasures::default();
    let (stats, images) =
        futures::join!(node.runtime.list_container_stats(None), node.runtime.image_fs_info());
    for stats in stats.unwrap_or_default() {
        let Some(id) = stats.attributes.map(|a| a.id) else { continue };
        if let Some(layer) = &stats.writable_layer {
            measures.layers.insert(id.clone(), (bytes(layer), inodes(layer)));
        }
        if let Some(rate) = stats.cpu.and_then(|c| c.usage_nano_cores) {
            measures.rates.insert(id, rate.value);
        }
    }
    if let Ok(images) = images {
        measures.image_fs = images.image_filesystems.first().and_then(on_disk);
        measures.container_fs = images.container_filesystems.first().and_then(on_disk).or(measures.image_fs);
    }
    measures
}

fn bytes(usage: &FilesystemUsage) -> Option<u64> {
    usage.used_bytes.as_ref().map(|v| v.value)
}

fn inodes(usage: &FilesystemUsage) -> Option<u64> {
    usage.inodes_used.as_ref().map(|v| v.value)
}

fn on_disk(usage: &FilesystemUsage) -> Option<Filesystem> {
    let path = usage.fs_id.as_ref()?.mountpoint.clone();
    Some(filesystem(Path::new(&path))?.with_used(bytes(usage), inodes(usage)))
}

struct Builder<'a> {
    node: &'a Node,
    measures: RuntimeMeasures,
    /// By the pod's uid.
    volumes: HashMap<String, Vec<VolumeStats>>,
    brief: bool,
    report: &'a Report,
}

impl Builder<'_> {
    fn build(&self) -> Summary {
        let at = self.report.at;
        self.rates_begin();
        let pods = self.report.pods.iter().map(|pod| self.pod(pod)).collect();
        let node = &self.report.node;
        let system = node.system.iter().map(|(name, usage)| ContainerStats {
            name: (*name).to_owned(),
            start_time: node.booted,
            usage: self.shown(name, usage, None),
            rootfs: None,
            logs: None,
        });
        let fs = |fs: Option<Filesystem>| fs.filter(|_| !self.brief).map(|fs| FsStats::of(fs, at));
        let (most, now) = processes("/proc".as_ref());
        let node = NodeStats {
            node_name: node.name.clone(),
            system_containers: system.collect(),
            start_time: node.booted,
            usage: self.shown("/", &node.usage, None),
            network: NetworkStats::of(&node.interfaces, at).filter(|_| !self.brief),
            fs: fs(node.fs),
            runtime: (!self.brief).then(|| RuntimeStats {
                image_fs: fs(self.measures.image_fs),
                container_fs: fs(self.measures.container_fs),
            }),
            rlimit: (!self.brief).then_some(RlimitStats { time: at, maxpid: most, curproc: now }),
        };
        Summary { node, pods }
    }

    fn pod(&self, pod: &PodReport) -> PodStats {
        let at = self.report.at;
        let logs = (!self.brief).then(|| self.log_dir(pod)).flatten();
        let containers: Vec<ContainerStats> =
            pod.containers.iter().map(|c| self.container(c, logs.as_deref())).collect();
        let volumes = self.volumes.get(&pod.uid).map(Vec::as_slice).unwrap_or_default();
        let ephemeral = self.report.node.fs.filter(|_| !self.brief).map(|fs| {
            let of_containers = containers.iter().flat_map(|c| [&c.rootfs, &c.logs]).flatten();
            let shares = of_containers.map(|fs| (fs.used_bytes, fs.inodes_used));
            let shares =
                shares.chain(volumes.iter().filter(|v| v.ephemeral).map(|v| (v.fs.used, v.fs.inodes_used)));
            let shares = shares.chain([self.single_files(pod)]);
            let (bytes, inodes) = shares
                .fold((0, 0), |(bytes, inodes), (b, i)| (bytes + b.unwrap_or(0), inodes + i.unwrap_or(0)));
            FsStats::of(fs.with_used(Some(bytes), Some(inodes)), at)
        });
        PodStats {
            pod_ref: PodRef {
                name: pod.name.clone(),
                namespace: pod.namespace.clone(),
                uid: pod.uid.clone(),
            },
            start_time: pod.created,
            containers,
            usage: self.shown(&pod.cgroup, &pod.usage, None),
            network: pod.interfaces.as_deref().and_then(|found| NetworkStats::of(found, at)),
            volumes: volumes
                .iter()
                .map(|v| VolumeFsStats { fs: FsStats::of(v.fs, at), name: v.volume.clone(), claim: None })
                .collect(),
            ephemeral_storage: ephemeral,
            processes: pod.usage.processes.map(|process_count| ProcessStats { process_count }),
        }
    }

    fn container(&self, c: &ContainerReport, logs: Option<&Path>) -> ContainerStats {
        let at = self.report.at;
        let node = self.report.node.fs.filter(|_| !self.brief);
        let layer = self.measures.layers.get(&c.id).copied();
        let layer_fs = self.measures.container_fs.or(node);
        let rootfs = layer.and_then(|(bytes, inodes)| Some(layer_fs?.with_used(bytes, inodes)));
        let log = logs.and_then(|dir| log_bytes(&dir.join(&c.name)));
        let log = log.and_then(|(bytes, inodes)| Some(node?.with_used(Some(bytes), Some(inodes))));
        ContainerStats {
            name: c.name.clone(),
            start_time: c.created,
            usage: self.shown(&c.cgroup, &c.usage, self.measures.rates.get(&c.id).copied()),
            rootfs: rootfs.map(|fs| FsStats::of(fs, at)),
            logs: log.map(|fs| FsStats::of(fs, at)),
        }
    }

    /// /etc/hosts and termination messages, which containers write to on the node's own disk.
    fn single_files(&self, pod: &PodReport) -> (Option<u64>, Option<u64>) {
        let Ok(uid) = PodUid::try_from(pod.uid.as_str()) else { return (None, None) };
        let (bytes, inodes) = files::usage(&self.node.dirs.pod(&uid));
        (Some(bytes), Some(inodes))
    }

    fn log_dir(&self, pod: &PodReport) -> Option<PathBuf> {
        let uid = PodUid::try_from(pod.uid.as_str()).ok()?;
        Some(self.node.logs.pod(&pod.namespace, &pod.name, &uid))
    }

    /// `measured` is the runtime's own measure, for as long as there is nothing of ours to compare with.
    fn shown(&self, what: &str, usage: &Usage, measured: Option<u64>) -> UsageStats {
        let at = self.report.at;
        let rate = usage.cpu_nanos.and_then(|used| {
            let mut rates = self.node.reports.stats.rates.lock().unwrap_or_else(PoisonError::into_inner);
            rates.observe(what, at.as_nanosecond(), used)
        });
        UsageStats::of(usage, rate.or(measured), at)
    }

    fn rates_begin(&self) {
        self.node.reports.stats.rates.lock().unwrap_or_else(PoisonError::into_inner).begin();
    }
}

fn empty_node() -> NodeStats {
    NodeStats {
        node_name: String::new(),
        system_containers: vec![],
        start_time: Default::default(),
        usage: UsageStats::default(),
        network: None,
        fs: None,
        runtime: None,
        rlimit: None,
    }
}
