//! Calls about containers.

use std::time::Duration;

use keelson_core::ids::{ContainerId, PodUid, SandboxId};
use keelson_proto::runtime::v1::{
    AttachRequest, CheckpointContainerRequest, Container, ContainerConfig, ContainerFilter, ContainerState,
    ContainerStateValue, ContainerStatus, ContainerStatusRequest, CreateContainerRequest, ExecRequest,
    ExecSyncRequest, LinuxContainerResources, ListContainersRequest, PodSandboxConfig,
    RemoveContainerRequest, ReopenContainerLogRequest, StartContainerRequest, StopContainerRequest,
    UpdateContainerResourcesRequest,
};

use crate::Runtime;
use crate::convert::labels;
use crate::error::CriError;
use crate::runtime::Call;
use crate::sandboxes::gone_is_fine;

/// More of a command's output than this is cut off, of either stream.
pub const EXEC_OUTPUT_LIMIT: usize = 64 << 10;

/// Longer graces than this make deadlines that no timer can hold.
const LONGEST_GRACE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What a command left behind, each stream no longer than [`EXEC_OUTPUT_LIMIT`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit_code: i32,
}

impl Runtime {
    /// `sandbox_config` must be the one that the sandbox was run with.
    pub async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: ContainerConfig,
        sandbox_config: &PodSandboxConfig,
    ) -> Result<ContainerId, CriError> {
        let name = config.metadata.as_ref().map(|m| m.name.as_str()).unwrap_or_default();
        let pod = sandbox_config.metadata.as_ref().map(|m| format!("{}/{}", m.namespace, m.name));
        let object = format!("{name} of pod {}", pod.unwrap_or_default());
        let call = self.on("create container", &object);
        let request = call.request(CreateContainerRequest {
            pod_sandbox_id: sandbox.as_str().into(),
            config: Some(config),
            sandbox_config: Some(sandbox_config.clone()),
        });
        let answer = self.mutate(&call, async |mut client| client.create_container(request).await).await?;
        ContainerId::try_from(answer.container_id).map_err(|bad| call.bad_answer(bad.to_string()))
    }

    pub async fn start_container(&self, id: &ContainerId) -> Result<(), CriError> {
        let call = self.on("start container", id.as_str());
        let request = call.request(StartContainerRequest { container_id: id.as_str().into() });
        self.mutate(&call, async |mut client| client.start_container(request).await).await.map(drop)
    }

    /// Sends the stop signal and, after the grace, SIGKILL. The deadline is the grace and the usual one together. A
    /// container that is gone is a success.
    pub async fn stop_container(&self, id: &ContainerId, grace_seconds: i64) -> Result<(), CriError> {
        let seconds = grace_seconds.clamp(0, LONGEST_GRACE.as_secs().cast_signed());
        let grace = Duration::from_secs(seconds.unsigned_abs());
        let call =
            Call { operation: "stop container", object: id.as_str(), limit: grace + self.request_timeout() };
        let request =
            call.request(StopContainerRequest { container_id: id.as_str().into(), timeout: seconds });
        gone_is_fine(self.mutate(&call, async |mut client| client.stop_container(request).await).await)
    }

    /// A container that is gone is a success.
    pub async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError> {
        let call = self.on("remove container", id.as_str());
        let request = call.request(RemoveContainerRequest { container_id: id.as_str().into() });
        gone_is_fine(self.mutate(&call, async |mut client| client.remove_container(request).await).await)
    }

    pub async fn container_status(&self, id: &ContainerId) -> Result<ContainerStatus, CriError> {
        let call = self.on("get status of container", id.as_str());
        let request =
            call.request(ContainerStatusRequest { container_id: id.as_str().into(), verbose: false });
        let answer = call.answer(self.client().container_status(request)).await?;
        answer.status.ok_or_else(|| call.bad_answer("the answer holds no status".into()))
    }

    pub async fn list_containers(&self, filter: Option<ContainerFilter>) -> Result<Vec<Container>, CriError> {
        let call = self.on("list containers of", self.endpoint());
        let request = call.request(ListContainersRequest { filter });
        Ok(call.answer(self.client().list_containers(request)).await?.containers)
    }

    pub async fn update_container_resources(
        &self,
        id: &ContainerId,
        linux: LinuxContainerResources,
    ) -> Result<(), CriError> {
        let call = self.on("update resources of container", id.as_str());
        let request = call.request(UpdateContainerResourcesRequest {
            container_id: id.as_str().into(),
            linux: Some(linux),
            ..Default::default()
        });
        let answer = call.answer(self.client().update_container_resources(request)).await;
        // What was seen of it before no longer holds, and after a failure nobody knows what does.
        self.cache().forget_container(id);
        answer.map(drop)
    }

    /// To be called after the log was moved aside: the runtime goes on in a new file under the old name.
    pub async fn reopen_log(&self, id: &ContainerId) -> Result<(), CriError> {
        let call = self.on("reopen log of container", id.as_str());
        let request = call.request(ReopenContainerLogRequest { container_id: id.as_str().into() });
        call.answer(self.client().reopen_container_log(request)).await.map(drop)
    }

    /// Runs a command to its end. `timeout` is the command's; zero means that only the usual deadline holds.
    pub async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecOutput, CriError> {
        // The runtime gets the first chance to end the command, because it can also kill it.
        let call = Call {
            operation: "run a command in container",
            object: id.as_str(),
            limit: timeout.saturating_add(self.request_timeout()).min(LONGEST_GRACE),
        };
        let whole_seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        let request = call.request(ExecSyncRequest {
            container_id: id.as_str().into(),
            cmd: command.to_vec(),
            timeout: i64::try_from(whole_seconds).unwrap_or(i64::MAX),
        });
        let mut answer = call.answer(self.client().exec_sync(request)).await?;
        answer.stdout.truncate(EXEC_OUTPUT_LIMIT);
        answer.stderr.truncate(EXEC_OUTPUT_LIMIT);
        Ok(ExecOutput { stdout: answer.stdout, stderr: answer.stderr, exit_code: answer.exit_code })
    }

    /// The running container of this name in a pod. None when there is none.
    pub async fn running_container(&self, pod: &PodUid, name: &str) -> Result<Option<ContainerId>, CriError> {
        let mut labels = labels::pod_selector(pod);
        labels.insert(labels::CONTAINER_NAME.into(), name.into());
        let state = ContainerStateValue { state: ContainerState::ContainerRunning.into() };
        let filter = ContainerFilter { state: Some(state), label_selector: labels, ..Default::default() };
        let newest = self.list_containers(Some(filter)).await?.into_iter().max_by_key(|c| c.created_at);
        let call = self.on("find container", name);
        newest
            .map(|c| ContainerId::try_from(c.id).map_err(|bad| call.bad_answer(bad.to_string())))
            .transpose()
    }

    /// Writes the container's state into an archive at `location`. Zero leaves the time to the runtime.
    pub async fn checkpoint(
        &self,
        id: &ContainerId,
        location: &str,
        timeout: Duration,
    ) -> Result<(), CriError> {
        let limit = timeout.saturating_add(self.request_timeout()).min(LONGEST_GRACE);
        let call = Call { operation: "checkpoint container", object: id.as_str(), limit };
        let request = call.request(CheckpointContainerRequest {
            container_id: id.as_str().into(),
            location: location.into(),
            timeout: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        });
        call.answer(self.client().checkpoint_container(request)).await.map(drop)
    }

    /// The URL at which the runtime's streaming server runs this command.
    pub async fn exec(&self, request: ExecRequest) -> Result<String, CriError> {
        let id = request.container_id.clone();
        let call = self.on("prepare a command in container", &id);
        let request = call.request(request);
        Ok(call.answer(self.client().exec(request)).await?.url)
    }

    /// The URL at which the runtime's streaming server attaches to this container.
    pub async fn attach(&self, request: AttachRequest) -> Result<String, CriError> {
        let id = request.container_id.clone();
        let call = self.on("attach to container", &id);
        let request = call.request(request);
        Ok(call.answer(self.client().attach(request)).await?.url)
    }
}
