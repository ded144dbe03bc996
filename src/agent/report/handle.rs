//! What the node's API may see and use of the running agent.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use keelson_apiserver::Api;
use keelson_core::config::Settings;
use keelson_core::ids::{ContainerId, PodUid};
use keelson_core::stats::summary::Summary;
use keelson_cri::{CriError, Runtime};
use keelson_host::logs::LogWatch;
use keelson_kit::metrics::Text;

use crate::node::Node;
use crate::registry::PodRecord;
use crate::report::metrics::LogStream;
use crate::report::{exposition, log_end, stats};

#[derive(Clone)]
pub struct NodeHandle(Arc<Node>);

impl NodeHandle {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self(node)
    }

    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// `None` on a node that stands alone.
    pub fn api(&self) -> Option<&Api> {
        self.0.api.as_ref().map(|parts| &parts.api)
    }

    /// What is wrong with the agent, if anything is.
    pub fn health(&self) -> Result<(), String> {
        self.0.reports.pulse.check()
    }

    /// The pods of this node as their workers last saw them, each with the status that it has here, which the apiserver may
    /// not have heard of yet.
    pub fn pods(&self) -> Vec<Pod> {
        let with_status = |record: PodRecord| {
            let mut pod = Pod::clone(&*record.desired?);
            if let Some(status) = record.status {
                pod.status = Some(PodStatus::clone(&status));
            }
            Some(pod)
        };
        self.0.registry.desired().into_iter().filter_map(with_status).collect()
    }

    /// One pod by its name, as it was ordered.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<(PodUid, Arc<Pod>)> {
        self.0.registry.named(namespace, name)
    }

    /// A pod's status as it stands here.
    pub fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.0.registry.get(uid)?.status
    }

    /// The instance of a container that runs. Its worker sees the end of one before it starts the next, so there is no other;
    /// only one that has just been started may be known to the runtime alone.
    pub async fn running(&self, pod: &PodUid, container: &str) -> Result<Option<ContainerId>, CriError> {
        let known = self.0.registry.get(pod).and_then(|record| record.running);
        let known = known.and_then(|pod| pod.running().find(|c| c.name == container).map(|c| c.id.clone()));
        match known {
            Some(id) => Ok(Some(id)),
            None => self.0.runtime.running_container(pod, container).await,
        }
    }

    /// The file that an instance writes its log to.
    pub async fn log_of(&self, pod: &PodUid, id: &ContainerId) -> Result<PathBuf, String> {
        let known = self.0.registry.get(pod).and_then(|record| record.running);
        let known = known.and_then(|pod| pod.container(id).map(|c| c.log_path.clone()));
        let path = known.ok_or_else(|| format!("container {id} is not there any more"))?;
        if path.is_empty() {
            return Err(format!("the runtime names no log of container {id} that could be used"));
        }
        Ok(path.into())
    }

    /// Returns when an instance does not run any more.
    pub fn until_ended(&self, pod: PodUid, id: ContainerId) -> impl Future<Output = ()> + Send + 'static {
        log_end::until_ended(self.0.registry.clone(), self.0.runtime.clone(), pod, id)
    }

    pub fn log_watch(&self) -> &LogWatch {
        &self.0.reports.log_watch
    }

    /// Somebody reads a log, until this is dropped.
    pub fn log_stream(&self) -> LogStream {
        self.0.reports.metrics.log_stream()
    }

    /// What the node and everything on it uses. `None` only when this process is out of order.
    pub async fn summary(&self, only_cpu_and_memory: bool) -> Option<Summary> {
        stats::summary(&self.0, only_cpu_and_memory).await
    }

    pub async fn resource_metrics(&self) -> Option<String> {
        exposition::resources(&self.0).await
    }

    pub async fn cadvisor_metrics(&self) -> Option<String> {
        exposition::containers(&self.0).await
    }

    pub fn probe_metrics(&self) -> String {
        exposition::probes(&self.0)
    }

    /// The agent's own metrics, to be completed by whoever has more.
    pub fn metrics(&self) -> Text {
        exposition::own(&self.0)
    }
}
