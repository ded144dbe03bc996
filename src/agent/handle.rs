//! What the node's API may see and use of the running agent.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use keelson_apiserver::Api;
use keelson_core::config::Settings;
use keelson_core::ids::PodUid;
use keelson_cri::Runtime;
use keelson_host::cgroup::Cgroups;
use keelson_host::dirs::RootDirs;
use keelson_host::logs::LogDirs;

use crate::context::Context;

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
}
