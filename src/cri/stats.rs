//! Calls about what containers and pods use.

use keelson_core::ids::{ContainerId, SandboxId};
use keelson_proto::runtime::v1::{
    ContainerStats, ContainerStatsFilter, ContainerStatsRequest, ListContainerStatsRequest,
    ListMetricDescriptorsRequest, ListPodSandboxMetricsRequest, ListPodSandboxStatsRequest, MetricDescriptor,
    PodSandboxMetrics, PodSandboxStats, PodSandboxStatsFilter, PodSandboxStatsRequest,
};

use crate::Runtime;
use crate::error::CriError;

impl Runtime {
    pub async fn container_stats(&self, id: &ContainerId) -> Result<Option<ContainerStats>, CriError> {
        let call = self.on("get stats of container", id.as_str());
        let request = call.request(ContainerStatsRequest { container_id: id.as_str().into() });
        Ok(call.answer(self.client().container_stats(request)).await?.stats)
    }

    pub async fn list_container_stats(
        &self,
        filter: Option<ContainerStatsFilter>,
    ) -> Result<Vec<ContainerStats>, CriError> {
        let call = self.on("list container stats of", self.endpoint());
        let request = call.request(ListContainerStatsRequest { filter });
        Ok(call.answer(self.client().list_container_stats(request)).await?.stats)
    }

    pub async fn sandbox_stats(&self, id: &SandboxId) -> Result<Option<PodSandboxStats>, CriError> {
        let call = self.on("get stats of sandbox", id.as_str());
        let request = call.request(PodSandboxStatsRequest { pod_sandbox_id: id.as_str().into() });
        Ok(call.answer(self.client().pod_sandbox_stats(request)).await?.stats)
    }

    pub async fn list_sandbox_stats(
        &self,
        filter: Option<PodSandboxStatsFilter>,
    ) -> Result<Vec<PodSandboxStats>, CriError> {
        let call = self.on("list sandbox stats of", self.endpoint());
        let request = call.request(ListPodSandboxStatsRequest { filter });
        Ok(call.answer(self.client().list_pod_sandbox_stats(request)).await?.stats)
    }

    pub async fn list_metric_descriptors(&self) -> Result<Vec<MetricDescriptor>, CriError> {
        let call = self.on("list metric descriptors of", self.endpoint());
        let request = call.request(ListMetricDescriptorsRequest {});
        Ok(call.answer(self.client().list_metric_descriptors(request)).await?.descriptors)
    }

    pub async fn list_sandbox_metrics(&self) -> Result<Vec<PodSandboxMetrics>, CriError> {
        let call = self.on("list sandbox metrics of", self.endpoint());
        let request = call.request(ListPodSandboxMetricsRequest {});
        Ok(call.answer(self.client().list_pod_sandbox_metrics(request)).await?.pod_metrics)
    }
}
