//! What the node's API may see and use of the running agent.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use keelson_apiserver::Api;
use keelson_core::config::Settings;
use keelson_core::ids::{ContainerId, PodUid};
use keelson_core::metrics::Text;
use keelson_core::stats::summary::Summary;
use keelson_cri::{CriError, Runtime};
use keelson_host::cgroup::Cgroups;
use keelson_host::dirs::RootDirs;
use keelson_host::logs::{LogDirs, LogWatch};

use crate::context::Context;
use crate::metrics::LogStream;
use crate::{exposition, logs, stats};

#[derive(Clone)]
pub struct NodeHandle(Arc<Context>);

impl NodeHandle {
    pub(crate) fn new(ctx: Arc<Context>) -> Self {
        Self(ctx)
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

    pub fn cgroups(&self) -> &Arc<Cgroups> {
        &self.0.cgroups
    }

    pub fn dirs(&self) -> &RootDirs {
        &self.0.dirs
    }

    pub fn logs(&self) -> &LogDirs {
        &self.0.logs
    }

    /// What is wrong with the agent, if anything is.
    pub fn health(&self) -> Result<(), String> {
        self.0.pulse.check()
    }

    /// The pods of this node as their workers last saw them, each with the status that it has here, which the apiserver may
    /// not have heard of yet.
    pub fn pods(&self) -> Vec<Pod> {
        let with_status = |(uid, pod): (PodUid, Arc<Pod>)| {
            let mut pod = Pod::clone(&pod);
            if let Some(status) = self.0.statuses.wanted(&uid) {
                pod.status = Some(status);
            }
            pod
        };
        self.0.view.pods().into_iter().map(with_status).collect()
    }

    /// One pod by its name, as it was ordered.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<(PodUid, Arc<Pod>)> {
        self.0.view.pod(namespace, name)
    }

    /// A pod's status as it stands here.
    pub fn status(&self, uid: &PodUid) -> Option<PodStatus> {
        self.0.statuses.wanted(uid)
    }

    /// The instance of a container that runs. Its worker sees the end of one before it starts the next, so there is no other;
    /// only one that has just been started may be known to the runtime alone.
    pub async fn running(&self, pod: &PodUid, container: &str) -> Result<Option<ContainerId>, CriError> {
        let record = self.0.inventory.get(pod);
        let known = record.and_then(|r| r.running().find(|c| c.name == container).map(|c| c.id.clone()));
        match known {
            Some(id) => Ok(Some(id)),
            None => self.0.runtime.running_container(pod, container).await,
        }
    }

    /// The file that an instance writes its log to.
    pub async fn log_of(&self, pod: &PodUid, id: &ContainerId) -> Result<PathBuf, String> {
        let known = self.0.inventory.get(pod).and_then(|r| r.container(id).map(|c| c.log_path.clone()));
        let path = known.ok_or_else(|| format!("container {id} is not there any more"))?;
        if path.is_empty() {
            return Err(format!("the runtime names no log of container {id} that could be used"));
        }
        Ok(path.into())
    }

    /// Returns when an instance does not run any more.
    pub fn until_ended(&self, pod: PodUid, id: ContainerId) -> impl Future<Output = ()> + Send + 'static {
        logs::until_ended(self.0.inventory.clone(), self.0.runtime.clone(), pod, id)
    }

    pub fn log_watch(&self) -> &LogWatch {
        &self.0.log_watch
    }

    /// Somebody reads a log, until this is dropped.
    pub fn log_stream(&self) -> LogStream {
        self.0.metrics.log_stream()
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
