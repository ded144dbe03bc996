//! Calls about pod sandboxes.

use keelson_core::ids::{PodUid, SandboxId};
use keelson_proto::runtime::v1::{
    LinuxContainerResources, ListPodSandboxRequest, PodSandbox, PodSandboxConfig, PodSandboxFilter,
    PodSandboxState, PodSandboxStateValue, PodSandboxStatusRequest, PodSandboxStatusResponse,
    PortForwardRequest, RemovePodSandboxRequest, RunPodSandboxRequest, StopPodSandboxRequest,
    UpdatePodSandboxResourcesRequest,
};

use crate::Runtime;
use crate::convert::labels;
use crate::error::CriError;
use crate::runtime::Call;

impl Runtime {
    /// Creates and starts a sandbox, network included. Waits twice as long as for other calls, because the network
    /// plugins run inside of it.
    pub async fn run_sandbox(&self, config: PodSandboxConfig, handler: &str) -> Result<SandboxId, CriError> {
        let object =
            config.metadata.as_ref().map(|m| format!("{}/{}", m.namespace, m.name)).unwrap_or_default();
        let call = Call {
            operation: "run sandbox of pod",
            object: &object,
            limit: Self::longest_mutating_call(self.request_timeout()),
        };
        let request =
            call.request(RunPodSandboxRequest { config: Some(config), runtime_handler: handler.into() });
        let answer = self.mutate(&call, async |mut client| client.run_pod_sandbox(request).await).await?;
        SandboxId::try_from(answer.pod_sandbox_id).map_err(|bad| call.bad_answer(bad.to_string()))
    }

    /// Ends every process in the sandbox and takes its network down. One that is gone is a success.
    pub async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let call = self.on("stop sandbox", id.as_str());
        let request = call.request(StopPodSandboxRequest { pod_sandbox_id: id.as_str().into() });
        gone_is_fine(self.mutate(&call, async |mut client| client.stop_pod_sandbox(request).await).await)
    }

    /// Removes the sandbox and whatever is left in it. One that is gone is a success.
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let call = self.on("remove sandbox", id.as_str());
        let request = call.request(RemovePodSandboxRequest { pod_sandbox_id: id.as_str().into() });
        gone_is_fine(self.mutate(&call, async |mut client| client.remove_pod_sandbox(request).await).await)
    }

    /// Tells the runtime what the pod is given as a whole. Most know nothing of it and say so.
    pub async fn update_sandbox_resources(
        &self,
        id: &SandboxId,
        overhead: LinuxContainerResources,
        resources: LinuxContainerResources,
    ) -> Result<(), CriError> {
        let call = self.on("update resources of sandbox", id.as_str());
        let request = call.request(UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: id.as_str().into(),
            overhead: Some(overhead),
            resources: Some(resources),
        });
        call.answer(self.client().update_pod_sandbox_resources(request)).await.map(drop)
    }

    pub async fn sandbox_status(&self, id: &SandboxId) -> Result<PodSandboxStatusResponse, CriError> {
        let call = self.on("get status of sandbox", id.as_str());
        let request =
            call.request(PodSandboxStatusRequest { pod_sandbox_id: id.as_str().into(), verbose: false });
        call.answer(self.client().pod_sandbox_status(request)).await
    }

    pub async fn list_sandboxes(
        &self,
        filter: Option<PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>, CriError> {
        let call = self.on("list sandboxes of", self.endpoint());
        let request = call.request(ListPodSandboxRequest { filter });
        Ok(call.answer(self.client().list_pod_sandbox(request)).await?.items)
    }

    /// The ready sandbox of a pod. None when there is none.
    pub async fn ready_sandbox(&self, pod: &PodUid) -> Result<Option<SandboxId>, CriError> {
        let state = PodSandboxStateValue { state: PodSandboxState::SandboxReady.into() };
        let labels = labels::pod_selector(pod);
        let filter = PodSandboxFilter { state: Some(state), label_selector: labels, ..Default::default() };
        let newest = self.list_sandboxes(Some(filter)).await?.into_iter().max_by_key(|s| s.created_at);
        let call = self.on("find sandbox of pod", pod.as_str());
        newest.map(|s| SandboxId::try_from(s.id).map_err(|bad| call.bad_answer(bad.to_string()))).transpose()
    }

    /// The URL at which the runtime's streaming server forwards these ports.
    pub async fn port_forward(&self, id: &SandboxId, ports: Vec<i32>) -> Result<String, CriError> {
        let call = self.on("forward ports of sandbox", id.as_str());
        let request = call.request(PortForwardRequest { pod_sandbox_id: id.as_str().into(), port: ports });
        Ok(call.answer(self.client().port_forward(request)).await?.url)
    }

    /// A call with the usual deadline.
    pub(crate) fn on<'a>(&self, operation: &'static str, object: &'a str) -> Call<'a> {
        Call { operation, object, limit: self.request_timeout() }
    }
}

/// Stopping and removing are about the end, not the way: what is not there any more has been stopped and removed.
pub(crate) fn gone_is_fine<T>(answer: Result<T, CriError>) -> Result<(), CriError> {
    match answer {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
