//! The runtime's own floor: the calls that every agent has to make for a pod, made directly and one after the other.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result};
use keelson_proto::runtime::v1 as cri;
use keelson_tests::containerd::Containerd;
use keelson_tests::images::BUSYBOX;
use keelson_tests::pods::SLEEP;
use keelson_tests::runtime::{CONTAINER_NAME, POD_NAME, POD_UID, Runtime};
use keelson_tests::{cgroups, isolation};

use crate::contender::Took;

pub struct Floor {
    runtime: Runtime,
    cgroup: String,
    containerd: Containerd,
}

impl Floor {
    pub async fn new(containerd: Containerd) -> Result<Self> {
        let cgroup = format!("{}/floor", isolation::cgroup_name());
        cgroups::make(&isolation::cgroup_name())?;
        cgroups::make(&cgroup)?;
        Ok(Self { runtime: Runtime::connect(&containerd.socket()).await?, cgroup, containerd })
    }

    /// Sandbox, container, start; then both stopped. That is what an agent must have done before it may say that the pod is
    /// gone; what is removed after that is not timed, for either.
    pub async fn one(&self, name: &str) -> Result<Took> {
        let began = Instant::now();
        let (sandbox, container) = self.start(name).await?;
        let start = began.elapsed();
        let began = Instant::now();
        self.stop(&sandbox, &container).await?;
        let stop = began.elapsed();
        self.remove(&sandbox, &container).await?;
        Ok(Took { start, stop })
    }

    /// The same for many at once: how long until all run, and until all are stopped.
    pub async fn many(&self, count: u32) -> Result<Took> {
        let began = Instant::now();
        let starts = (0..count).map(|n| async move { self.start(&format!("many-{count}-{n}")).await });
        let made = futures::future::try_join_all(starts).await?;
        let start = began.elapsed();
        let began = Instant::now();
        futures::future::try_join_all(made.iter().map(|(sandbox, container)| self.stop(sandbox, container)))
            .await?;
        let stop = began.elapsed();
        futures::future::try_join_all(
            made.iter().map(|(sandbox, container)| self.remove(sandbox, container)),
        )
        .await?;
        Ok(Took { start, stop })
    }

    async fn start(&self, name: &str) -> Result<(String, String)> {
        let mut runtime = self.runtime.runtime.clone();
        let config = self.sandbox_config(name)?;
        let request =
            cri::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: String::new() };
        let sandbox =
            runtime.run_pod_sandbox(request).await.context("RunPodSandbox")?.into_inner().pod_sandbox_id;
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.clone(),
            config: Some(container_config(name)),
            sandbox_config: Some(config),
        };
        let container =
            runtime.create_container(request).await.context("CreateContainer")?.into_inner().container_id;
        let request = cri::StartContainerRequest { container_id: container.clone() };
        runtime.start_container(request).await.context("StartContainer")?;
        Ok((sandbox, container))
    }

    async fn stop(&self, sandbox: &str, container: &str) -> Result<()> {
        let mut runtime = self.runtime.runtime.clone();
        let request = cri::StopContainerRequest { container_id: container.into(), timeout: 1 };
        // With a hundred at once a shim can be gone between containerd's check of it and its signal. An agent asks again,
        // and so does this.
        if runtime.stop_container(request.clone()).await.is_err() {
            runtime.stop_container(request).await.context("StopContainer")?;
        }
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.into() };
        runtime.stop_pod_sandbox(request).await.context("StopPodSandbox")?;
        Ok(())
    }

    async fn remove(&self, sandbox: &str, container: &str) -> Result<()> {
        let mut runtime = self.runtime.runtime.clone();
        let request = cri::RemoveContainerRequest { container_id: container.into() };
        runtime.remove_container(request).await.context("RemoveContainer")?;
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox.into() };
        runtime.remove_pod_sandbox(request).await.context("RemovePodSandbox")?;
        Ok(())
    }

    fn sandbox_config(&self, name: &str) -> Result<cri::PodSandboxConfig> {
        let logs = self.containerd.socket().with_file_name("logs").join(name);
        std::fs::create_dir_all(logs.join("main"))?;
        let parent = format!("/{}/pod-{name}", self.cgroup);
        cgroups::make(parent.trim_start_matches('/'))?;
        Ok(cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                name: name.into(),
                uid: name.into(),
                namespace: "default".into(),
                attempt: 0,
            }),
            hostname: name.into(),
            log_directory: logs.display().to_string(),
            labels: labels(name),
            linux: Some(cri::LinuxPodSandboxConfig { cgroup_parent: parent, ..Default::default() }),
            ..Default::default()
        })
    }
}

fn labels(name: &str) -> BTreeMap<String, String> {
    let pairs = [(POD_NAME, name), (POD_UID, name), (CONTAINER_NAME, "main")];
    pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn container_config(name: &str) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "main".into(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: BUSYBOX.into(), ..Default::default() }),
        command: ["sh", "-c", SLEEP].map(str::to_owned).to_vec(),
        labels: labels(name),
        log_path: "main/0.log".into(),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(cri::LinuxContainerResources {
                cpu_shares: 2,
                oom_score_adj: 999,
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}
