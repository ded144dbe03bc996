//! The runtime as it is, asked directly over CRI: what the tests compare the agent's claims with, and the benches' floor.

use std::path::Path;

use anyhow::{Context, Result};
use keelson_proto::runtime::v1 as cri;
use keelson_proto::runtime::v1::image_service_client::ImageServiceClient;
use keelson_proto::runtime::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::{Channel, Endpoint};

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

#[derive(Clone)]
pub struct Runtime {
    pub runtime: RuntimeServiceClient<Channel>,
    pub images: ImageServiceClient<Channel>,
}

/// One container as the runtime lists it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    pub pod: String,
    pub name: String,
    pub id: String,
    pub attempt: u32,
    pub running: bool,
}

impl Runtime {
    pub async fn connect(socket: &Path) -> Result<Self> {
        let channel = Endpoint::try_from(format!("unix://{}", socket.display()))?
            .connect()
            .await
            .with_context(|| format!("cannot reach the runtime at {}", socket.display()))?;
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone()),
            images: ImageServiceClient::new(channel),
        })
    }

    /// The network configuration that the runtime has loaded, as it shows it.
    pub async fn network_config(&self) -> Result<String> {
        let answer = self.runtime.clone().status(cri::StatusRequest { verbose: true }).await?;
        answer.into_inner().info.remove("cniconfig").context("the runtime shows no network configuration")
    }

    /// The names and ids of all sandboxes, ready or not.
    pub async fn sandboxes(&self) -> Result<Vec<cri::PodSandbox>> {
        let answer = self.runtime.clone().list_pod_sandbox(cri::ListPodSandboxRequest::default()).await?;
        Ok(answer.into_inner().items)
    }

    /// All containers, running or not, in a steady order.
    pub async fn containers(&self) -> Result<Vec<Seen>> {
        let answer = self.runtime.clone().list_containers(cri::ListContainersRequest::default()).await?;
        let label = |c: &cri::Container, key: &str| c.labels.get(key).cloned().unwrap_or_default();
        let mut all: Vec<Seen> = answer
            .into_inner()
            .containers
            .iter()
            .map(|c| Seen {
                pod: label(c, POD_NAME),
                name: label(c, CONTAINER_NAME),
                id: c.id.clone(),
                attempt: c.metadata.as_ref().map(|m| m.attempt).unwrap_or_default(),
                running: c.state() == cri::ContainerState::ContainerRunning,
            })
            .collect();
        all.sort();
        Ok(all)
    }

    /// The containers of one pod.
    pub async fn containers_of(&self, pod: &str) -> Result<Vec<Seen>> {
        Ok(self.containers().await?.into_iter().filter(|c| c.pod == pod).collect())
    }

    pub async fn sandboxes_of(&self, pod: &str) -> Result<Vec<cri::PodSandbox>> {
        let all = self.sandboxes().await?;
        Ok(all.into_iter().filter(|s| s.labels.get(POD_NAME).is_some_and(|n| n == pod)).collect())
    }

    /// Kills a container behind the agent's back.
    pub async fn stop_container(&self, id: &str) -> Result<()> {
        let request = cri::StopContainerRequest { container_id: id.into(), timeout: 0 };
        self.runtime.clone().stop_container(request).await?;
        Ok(())
    }

    /// Has the runtime go on in a new log file, after somebody has moved the old one.
    pub async fn reopen_log(&self, id: &str) -> Result<()> {
        let request = cri::ReopenContainerLogRequest { container_id: id.into() };
        self.runtime.clone().reopen_container_log(request).await?;
        Ok(())
    }

    /// Stops a sandbox with all that is in it, behind the agent's back.
    pub async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.into() };
        self.runtime.clone().stop_pod_sandbox(request).await?;
        Ok(())
    }

    /// The process id of a running container, from its verbose status.
    pub async fn process_of(&self, id: &str) -> Result<u32> {
        let request = cri::ContainerStatusRequest { container_id: id.into(), verbose: true };
        let answer = self.runtime.clone().container_status(request).await?.into_inner();
        let info = answer.info.get("info").context("the runtime gives no verbose status")?;
        let info: serde_json::Value = serde_json::from_str(info)?;
        let pid =
            info.get("pid").and_then(serde_json::Value::as_u64).context("no pid in the verbose status")?;
        Ok(u32::try_from(pid)?)
    }

    /// Runs a command in a container and returns its output; an exit code other than 0 is an error.
    pub async fn exec(&self, id: &str, command: &[&str]) -> Result<String> {
        let request = cri::ExecSyncRequest {
            container_id: id.into(),
            cmd: command.iter().map(|a| (*a).to_owned()).collect(),
            timeout: 20,
        };
        let answer = self.runtime.clone().exec_sync(request).await?.into_inner();
        let out = String::from_utf8_lossy(&answer.stdout).into_owned();
        anyhow::ensure!(
            answer.exit_code == 0,
            "{command:?} ended with {}: {out}{}",
            answer.exit_code,
            String::from_utf8_lossy(&answer.stderr)
        );
        Ok(out)
    }
}
