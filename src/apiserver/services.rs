//! The Services that the environment of containers names.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Service;
use keelson_core::env::{ServiceEnv, ServicePort};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::Api;
use crate::watch::{Scope, Update};

type Services = BTreeMap<(String, String), Arc<ServiceEnv>>;

/// All Services of the cluster that have an address, kept small.
#[derive(Clone)]
pub struct ServiceCache {
    services: Arc<RwLock<Services>>,
    synced: watch::Receiver<bool>,
    _task: Arc<AbortOnDrop>,
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ServiceCache {
    /// Starts following.
    pub fn start(api: Api) -> Self {
        let services = Arc::<RwLock<Services>>::default();
        let (sender, synced) = watch::channel(false);
        let task = tokio::spawn(keep(api, services.clone(), sender));
        Self { services, synced, _task: Arc::new(AbortOnDrop(task)) }
    }

    /// Returns once the first list is there: a container that starts before would miss its variables for good.
    pub async fn synced(&self) {
        let mut synced = self.synced.clone();
        // The sender lives as long as the task, and that as long as self.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// The Services of a namespace, and `kubernetes` of the default one, which every pod sees.
    pub fn visible_in(&self, namespace: &str) -> Vec<Arc<ServiceEnv>> {
        let services = self.services.read().unwrap_or_else(PoisonError::into_inner);
        let own = services.values().filter(|service| service.namespace == namespace);
        let master = services.get(&("default".to_owned(), "kubernetes".to_owned()));
        let master = master.filter(|_| namespace != "default");
        own.chain(master).cloned().collect()
    }
}

async fn keep(api: Api, services: Arc<RwLock<Services>>, synced: watch::Sender<bool>) {
    let scope = Scope::new("services", "/api/v1/services").first_from_cache();
    let mut updates = std::pin::pin!(api.follow::<Service>(scope));
    while let Some(update) = updates.next().await {
        let mut known = services.write().unwrap_or_else(PoisonError::into_inner);
        match update {
            Update::Synced { items, .. } => {
                *known = items
                    .into_iter()
                    .filter_map(info)
                    .map(|service| (key(&service), Arc::new(service)))
                    .collect();
                synced.send_replace(true);
            }
            Update::Applied(service) => {
                let name = full_name(&service);
                match info(service) {
                    Some(service) => known.insert(name, Arc::new(service)),
                    None => known.remove(&name),
                };
            }
            Update::Deleted(service) => {
                known.remove(&full_name(&service));
            }
            Update::Disconnected(error) => tracing::debug!(%error, "serving what is known"),
        }
    }
}

fn key(service: &ServiceEnv) -> (String, String) {
    (service.namespace.clone(), service.name.clone())
}

fn full_name(service: &Service) -> (String, String) {
    let metadata = &service.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// None for a Service without an address of its own (headless, ExternalName, not yet given one).
fn info(service: Service) -> Option<ServiceEnv> {
    let (namespace, name) = full_name(&service);
    let spec = service.spec?;
    let cluster_ip = spec.cluster_ip.filter(|ip| !ip.is_empty() && ip != "None")?;
    let ports = spec.ports.unwrap_or_default().into_iter().map(|port| ServicePort {
        name: port.name.unwrap_or_default(),
        port: port.port,
        protocol: port.protocol.unwrap_or_else(|| "TCP".to_owned()),
    });
    Some(ServiceEnv { namespace, name, cluster_ip, ports: ports.collect() })
}
