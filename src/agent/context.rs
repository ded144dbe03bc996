//! What every worker on this node shares. Built once in `run`, passed by `Arc`, changed only through its parts.

use std::net::IpAddr;
use std::sync::Arc;

use keelson_apiserver::{Api, EventRecorder, ObjectCache, RuntimeClassCache, ServiceCache, TokenCache};
use keelson_core::admission::NodeView;
use keelson_core::config::Settings;
use keelson_core::dns::DnsConfig;
use keelson_core::resources::NodeCapacity;
use keelson_cri::Runtime;
use keelson_cri::status::RuntimeStatus;
use keelson_host::cgroup::Cgroups;
use keelson_host::dirs::RootDirs;
use keelson_host::logs::{LogDirs, LogWatch};
use tokio::sync::watch;

use crate::images::Images;
use crate::inventory::Inventory;
use crate::metrics::Metrics;
use crate::pulse::Pulse;
use crate::stats;
use crate::status_writer::StatusWriter;
use crate::view::View;

pub struct Context {
    pub settings: Settings,
    pub runtime: Runtime,
    /// `None` on a node that stands alone.
    pub api: Option<ApiParts>,
    pub dirs: RootDirs,
    pub logs: LogDirs,
    pub cgroups: Arc<Cgroups>,
    pub images: Images,
    pub events: EventRecorder,
    pub statuses: StatusWriter,
    pub view: View,
    pub pulse: Pulse,
    /// What the workers last saw.
    pub inventory: Inventory,
    /// Shared by everybody who follows a log.
    pub log_watch: LogWatch,
    pub metrics: Metrics,
    pub stats: stats::Memory,
    pub capacity: NodeCapacity,
    /// What the node has and is, as admission and the downward API see it.
    pub node: watch::Receiver<NodeView>,
    /// What the runtime can do beyond the minimum, as it last said.
    pub features: watch::Sender<RuntimeFeatures>,
    /// The node's addresses, primary first.
    pub host_ips: watch::Receiver<Vec<IpAddr>>,
    /// As container ids are prefixed in a status: containerd, cri-o.
    pub runtime_name: watch::Receiver<String>,
}

pub struct ApiParts {
    pub api: Api,
    pub objects: ObjectCache,
    pub tokens: TokenCache,
    pub services: ServiceCache,
    pub runtime_classes: RuntimeClassCache,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    pub recursive_read_only: bool,
    pub supplemental_groups_policy: bool,
}

impl Context {
    pub fn note_features(&self, status: &RuntimeStatus) {
        // The default handler has no name.
        let default = status.handlers.iter().find(|h| h.name.is_empty());
        let features = RuntimeFeatures {
            recursive_read_only: default.is_some_and(|h| h.recursive_read_only_mounts),
            supplemental_groups_policy: status.features.supplemental_groups_policy,
        };
        self.features.send_if_modified(|f| std::mem::replace(f, features) != features);
    }

    pub fn recursive_read_only(&self) -> bool {
        self.features.borrow().recursive_read_only
    }

    pub fn cfs_period_micros(&self) -> i64 {
        let period = self.settings.kubelet.cpu_cfs_quota_period.get();
        i64::try_from(period.as_micros()).unwrap_or(100_000)
    }

    /// The host's resolver, read anew for each sandbox: it changes when the host's network does.
    pub async fn host_dns(&self) -> Option<DnsConfig> {
        let path = self.settings.kubelet.resolv_conf.clone();
        if path.is_empty() {
            return None;
        }
        let read = tokio::task::spawn_blocking(move || keelson_host::resolv::read(path.as_ref())).await;
        match read {
            Ok(Ok(found)) => Some(found),
            Ok(Err(e)) => {
                tracing::warn!(error = %e, "the host's resolver configuration cannot be read; pods get none from it");
                None
            }
            Err(_) => None,
        }
    }
}
