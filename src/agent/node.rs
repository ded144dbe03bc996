//! What all parts of the agent share. Built once in `run`, passed by `Arc`, changed only through its parts.

pub mod addresses;
pub mod machine;
pub mod node_loop;
pub mod object;
pub mod pod_ranges;
pub mod pulse;
mod reporter;
mod runtime_monitor;
mod signals;
pub mod state;

use std::sync::Arc;

use keelson_apiserver::{Api, ObjectCache, RuntimeClassCache, ServiceCache, TokenCache, TrustBundleCache};
use keelson_core::config::Settings;
use keelson_core::dns::DnsConfig;
use keelson_cri::Runtime;
use keelson_host::cgroup::Cgroups;
use keelson_host::dirs::RootDirs;
use keelson_host::logs::LogDirs;
use keelson_volumes::VolumeManager;

use crate::allocations::Allocations;
use crate::images::Images;
use crate::managers::Managers;
use crate::node::machine::MachineFacts;
use crate::node::state::NodeState;
use crate::registry::Registry;
use crate::report::Reports;
use crate::user_namespaces::UserNamespaces;

pub struct Node {
    pub settings: Settings,
    /// As read when the agent started.
    pub machine: MachineFacts,
    pub state: NodeState,
    pub runtime: Runtime,
    /// `None` on a node that stands alone.
    pub api: Option<ApiParts>,
    pub dirs: RootDirs,
    pub logs: LogDirs,
    pub cgroups: Arc<Cgroups>,
    pub images: Images,
    pub volumes: VolumeManager,
    /// What pods were granted, and what their cgroups have.
    pub allocated: Arc<Allocations>,
    pub actuated: Arc<Allocations>,
    pub managers: Managers,
    pub user_namespaces: UserNamespaces,
    pub registry: Registry,
    pub reports: Reports,
}

pub struct ApiParts {
    pub api: Api,
    pub objects: ObjectCache,
    pub tokens: TokenCache,
    pub services: ServiceCache,
    pub runtime_classes: RuntimeClassCache,
    pub trust_bundles: TrustBundleCache,
}

impl Node {
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
