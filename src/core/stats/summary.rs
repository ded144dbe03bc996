//! The JSON of /stats/summary. Names and nesting are the API's (stats/v1alpha1); what is not known is left out.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::usage::{self, Filesystem, Pressure, Stall, Usage};

#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub node: NodeStats,
    pub pods: Vec<PodStats>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    pub node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<ContainerStats>,
    #[serde(serialize_with = "seconds")]
    pub start_time: Timestamp,
    #[serde(flatten)]
    pub usage: UsageStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rlimit: Option<RlimitStats>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_fs: Option<FsStats>,
}

#[derive(Debug, Clone, Serialize)]
pub struct RlimitStats {
    #[serde(serialize_with = "seconds")]
    pub time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maxpid: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curproc: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pub pod_ref: PodRef,
    #[serde(serialize_with = "seconds")]
    pub start_time: Timestamp,
    pub containers: Vec<ContainerStats>,
    #[serde(flatten)]
    pub usage: UsageStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeFsStats>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<FsStats>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub processes: Option<ProcessStats>,
}

#[derive(Debug, Clone, Serialize)]
pub struct PodRef {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

#[derive(Debug, Clone, Serialize)]
pub struct ProcessStats {
    pub process_count: u64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    pub name: String,
    #[serde(serialize_with = "seconds")]
    pub start_time: Timestamp,
    #[serde(flatten)]
    pub usage: UsageStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<FsStats>,
}

/// What is shown of a cgroup's usage, alike for a node, a pod and a container.
#[derive(Debug, Clone, Default, Serialize)]
pub struct UsageStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    #[serde(serialize_with = "seconds")]
    pub time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<Psi>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    #[serde(serialize_with = "seconds")]
    pub time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<Psi>,
}

#[derive(Debug, Clone, Serialize)]
pub struct IoStats {
    #[serde(serialize_with = "seconds")]
    pub time: Timestamp,
    pub psi: Psi,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwapStats {
    #[serde(serialize_with = "seconds")]
    pub time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_usage_bytes: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Psi {
    pub full: PsiData,
    pub some: PsiData,
}

#[derive(Debug, Clone, Serialize)]
pub struct PsiData {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

#[derive(Debug, Clone, Serialize)]
pub struct NetworkStats {
    #[serde(serialize_with = "seconds")]
    pub time: Timestamp,
    #[serde(flatten)]
    pub primary: InterfaceStats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStats>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStats {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_errors: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct VolumeFsStats {
    #[serde(flatten)]
    pub fs: FsStats,
    pub name: String,
    #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Claim {
    pub name: String,
    pub namespace: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsStats {
    #[serde(serialize_with = "seconds")]
    pub time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_used: Option<u64>,
}

impl UsageStats {
    /// `rate` in billionths of a processor.
    pub fn of(usage: &Usage, rate: Option<u64>, time: Timestamp) -> Self {
        let available = |limit: Option<u64>, used: Option<u64>| Some(limit?.saturating_sub(used?));
        Self {
            cpu: usage.cpu_nanos.map(|nanos| CpuStats {
                time,
                usage_nano_cores: rate,
                usage_core_nano_seconds: Some(nanos),
                psi: usage.pressures.cpu.map(Psi::from),
            }),
            memory: usage.memory.map(|used| MemoryStats {
                time,
                available_bytes: available(usage.memory_limit, usage.working_set),
                usage_bytes: Some(used),
                working_set_bytes: usage.working_set,
                rss_bytes: usage.rss,
                page_faults: usage.page_faults,
                major_page_faults: usage.major_page_faults,
                psi: usage.pressures.memory.map(Psi::from),
            }),
            io: usage.pressures.io.map(|p| IoStats { time, psi: p.into() }),
            swap: usage.swap.map(|used| SwapStats {
                time,
                swap_available_bytes: available(usage.swap_limit, Some(used)),
                swap_usage_bytes: Some(used),
            }),
        }
    }
}

impl From<Pressure> for Psi {
    fn from(p: Pressure) -> Self {
        let data =
            |s: Stall| PsiData { total: s.total_micros, avg10: s.avg10, avg60: s.avg60, avg300: s.avg300 };
        Self { full: data(p.full), some: data(p.some) }
    }
}

impl NetworkStats {
    /// The first is the one that the sums of a pod are taken from; by the reference it is named eth0.
    pub fn of(found: &[usage::Interface], time: Timestamp) -> Option<Self> {
        let shown: Vec<InterfaceStats> =
            found.iter().filter(|i| usage::counts_as_traffic(&i.name)).map(InterfaceStats::from).collect();
        let primary = shown.iter().find(|i| i.name == "eth0").cloned();
        (!shown.is_empty()).then(|| Self { time, primary: primary.unwrap_or_default(), interfaces: shown })
    }
}

impl From<&usage::Interface> for InterfaceStats {
    fn from(i: &usage::Interface) -> Self {
        Self {
            name: i.name.clone(),
            rx_bytes: Some(i.received.bytes),
            rx_errors: Some(i.received.errors),
            tx_bytes: Some(i.sent.bytes),
            tx_errors: Some(i.sent.errors),
        }
    }
}

impl FsStats {
    pub fn of(fs: Filesystem, time: Timestamp) -> Self {
        Self {
            time,
            available_bytes: fs.available,
            capacity_bytes: fs.capacity,
            used_bytes: fs.used,
            inodes_free: fs.inodes_free,
            inodes: fs.inodes,
            inodes_used: fs.inodes_used,
        }
    }
}

/// Times are whole seconds in this API.
fn seconds<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    let whole = Timestamp::from_second(time.as_second()).unwrap_or(*time);
    serializer.collect_str(&whole)
}
