//! Makes the summary of a report: adds rates, and with them what disks hold and what only the runtime knows.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use keelson_core::ids::PodUid;
use keelson_core::stats::report::{ContainerReport, PodReport, Report};
use keelson_core::stats::summary::{
    Container, Fs, Network, Node, Pod, PodRef, Processes, Rlimit, Runtime, Shown, Summary, Volume,
};
use keelson_core::stats::{Filesystem, Usage};
use keelson_cri::proto::FilesystemUsage;
use keelson_host::stats::{filesystem, log_bytes, processes};

use super::volumes;
use crate::context::Context;

/// What only the runtime can tell, by container id: bytes and inodes of the writable layer, and its own measure of the
/// processor in use.
#[derive(Default)]
pub(super) struct Told {
    layers: HashMap<String, (Option<u64>, Option<u64>)>,
    rates: HashMap<String, u64>,
    image_fs: Option<Filesystem>,
    container_fs: Option<Filesystem>,
}

pub(super) async fn build(ctx: &Arc<Context>, report: Report, told: Told, brief: bool) -> Summary {
    let ctx = ctx.clone();
    let built =
        tokio::task::spawn_blocking(move || Builder { ctx: &ctx, told, brief, report: &report }.build())
            .await;
    // A panic in there is a mistake of ours; an empty summary is the least harm.
    built.unwrap_or_else(|_| Summary { node: empty_node(), pods: vec![] })
}

pub(super) async fn ask(ctx: &Context) -> Told {
    let mut told = Told::default();
    let (stats, images) = futures::join!(ctx.runtime.list_container_stats(None), ctx.runtime.image_fs_info());
    for stats in stats.unwrap_or_default() {
        let Some(id) = stats.attributes.map(|a| a.id) else { continue };
        if let Some(layer) = &stats.writable_layer {
            told.layers.insert(id.clone(), (bytes(layer), inodes(layer)));
        }
        if let Some(rate) = stats.cpu.and_then(|c| c.usage_nano_cores) {
            told.rates.insert(id, rate.value);
        }
    }
    if let Ok(images) = images {
        told.image_fs = images.image_filesystems.first().and_then(on_disk);
        told.container_fs = images.container_filesystems.first().and_then(on_disk).or(told.image_fs);
    }
    told
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
    ctx: &'a Context,
    told: Told,
    brief: bool,
    report: &'a Report,
}

impl Builder<'_> {
    fn build(&self) -> Summary {
        let at = self.report.at;
        self.rates_begin();
        let pods = self.report.pods.iter().map(|pod| self.pod(pod)).collect();
        let node = &self.report.node;
        let system = node.system.iter().map(|(name, usage)| Container {
            name: (*name).to_owned(),
            start_time: node.booted,
            usage: self.shown(name, usage, None),
            rootfs: None,
            logs: None,
        });
        let fs = |fs: Option<Filesystem>| fs.filter(|_| !self.brief).map(|fs| Fs::of(fs, at));
        let (most, now) = processes("/proc".as_ref());
        let node = Node {
            node_name: node.name.clone(),
            system_containers: system.collect(),
            start_time: node.booted,
            usage: self.shown("/", &node.usage, None),
            network: Network::of(&node.interfaces, at).filter(|_| !self.brief),
            fs: fs(node.fs),
            runtime: (!self.brief).then(|| Runtime {
                image_fs: fs(self.told.image_fs),
                container_fs: fs(self.told.container_fs),
            }),
            rlimit: (!self.brief).then_some(Rlimit { time: at, maxpid: most, curproc: now }),
        };
        if !self.brief {
            self.ctx.stats.volumes.tidy();
        }
        Summary { node, pods }
    }

    fn pod(&self, pod: &PodReport) -> Pod {
        let at = self.report.at;
        let logs = (!self.brief).then(|| self.log_dir(pod)).flatten();
        let containers: Vec<Container> =
            pod.containers.iter().map(|c| self.container(c, logs.as_deref())).collect();
        let volumes = if self.brief { vec![] } else { self.volumes(pod) };
        let ephemeral = self.report.node.fs.filter(|_| !self.brief).map(|fs| {
            let of_containers = containers.iter().flat_map(|c| [&c.rootfs, &c.logs]).flatten();
            let shares = of_containers.map(|fs| (fs.used_bytes, fs.inodes_used));
            let shares =
                shares.chain(volumes.iter().filter(|v| v.ephemeral).map(|v| (v.fs.used, v.fs.inodes_used)));
            let (bytes, inodes) = shares
                .fold((0, 0), |(bytes, inodes), (b, i)| (bytes + b.unwrap_or(0), inodes + i.unwrap_or(0)));
            Fs::of(fs.with_used(Some(bytes), Some(inodes)), at)
        });
        Pod {
            pod_ref: PodRef {
                name: pod.name.clone(),
                namespace: pod.namespace.clone(),
                uid: pod.uid.clone(),
            },
            start_time: pod.created,
            containers,
            usage: self.shown(&pod.cgroup, &pod.usage, None),
            network: pod.interfaces.as_deref().and_then(|found| Network::of(found, at)),
            volumes: volumes
                .into_iter()
                .map(|v| Volume { fs: Fs::of(v.fs, at), name: v.name, claim: None })
                .collect(),
            ephemeral_storage: ephemeral,
            processes: pod.usage.processes.map(|process_count| Processes { process_count }),
        }
    }

    fn container(&self, c: &ContainerReport, logs: Option<&Path>) -> Container {
        let at = self.report.at;
        let node = self.report.node.fs.filter(|_| !self.brief);
        let layer = self.told.layers.get(&c.id).copied();
        let layer_fs = self.told.container_fs.or(node);
        let rootfs = layer.and_then(|(bytes, inodes)| Some(layer_fs?.with_used(bytes, inodes)));
        let log = logs.and_then(|dir| log_bytes(&dir.join(&c.name)));
        let log = log.and_then(|(bytes, inodes)| Some(node?.with_used(Some(bytes), Some(inodes))));
        Container {
            name: c.name.clone(),
            start_time: c.created,
            usage: self.shown(&c.cgroup, &c.usage, self.told.rates.get(&c.id).copied()),
            rootfs: rootfs.map(|fs| Fs::of(fs, at)),
            logs: log.map(|fs| Fs::of(fs, at)),
        }
    }

    fn volumes(&self, pod: &PodReport) -> Vec<volumes::Found> {
        let Ok(uid) = PodUid::try_from(pod.uid.as_str()) else { return vec![] };
        let dir = self.ctx.dirs.pod(&uid).path().join("volumes");
        let device = std::fs::metadata(&self.ctx.settings.root_dir).ok().map(|m| m.dev());
        let lasts = self.ctx.settings.kubelet.volume_stats_agg_period.get().max(Duration::from_secs(1));
        volumes::of_pod(&dir, device, &self.ctx.stats.volumes, lasts)
    }

    fn log_dir(&self, pod: &PodReport) -> Option<PathBuf> {
        let uid = PodUid::try_from(pod.uid.as_str()).ok()?;
        Some(self.ctx.logs.pod(&pod.namespace, &pod.name, &uid))
    }

    /// `told` is the runtime's own measure, for as long as there is nothing of ours to compare with.
    fn shown(&self, what: &str, usage: &Usage, told: Option<u64>) -> Shown {
        let at = self.report.at;
        let rate = usage.cpu_nanos.and_then(|used| {
            let mut rates = self.ctx.stats.rates.lock().unwrap_or_else(PoisonError::into_inner);
            rates.observe(what, at.as_nanosecond(), used)
        });
        Shown::of(usage, rate.or(told), at)
    }

    fn rates_begin(&self) {
        self.ctx.stats.rates.lock().unwrap_or_else(PoisonError::into_inner).begin();
    }
}

fn empty_node() -> Node {
    Node {
        node_name: String::new(),
        system_containers: vec![],
        start_time: Default::default(),
        usage: Shown::default(),
        network: None,
        fs: None,
        runtime: None,
        rlimit: None,
    }
}
