//! The agent under test: a node with directories, ports and cgroups of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::certs::Pair;
use crate::process::{Daemon, output};
use crate::suite::folder;
use crate::supervisor::Supervisor;
use crate::wait::{free_port, until};
use crate::{built, cgroups, isolation};

/// How an agent is to be started.
#[derive(Debug, Clone)]
pub struct Options {
    pub node: String,
    pub runtime_endpoint: String,
    /// None runs it standalone, on its manifest directory alone.
    pub kubeconfig: Option<PathBuf>,
    pub client_ca: Option<PathBuf>,
    pub serving: Option<Pair>,
    /// Fields that replace those of the rig's configuration file.
    pub config: Value,
    pub flags: Vec<String>,
}

/// The local socket's name in the agent's folder.
const SOCKET: &str = "keelson.sock";

pub struct Agent {
    options: Options,
    dir: PathBuf,
    program: PathBuf,
    supervisor: Supervisor,
    daemon: Option<Daemon>,
    /// How often it was started; each start has its own log.
    starts: u32,
    /// What it may take, from its next start on.
    memory: Option<u64>,
}

impl Agent {
    /// Starts the agent and waits until it says that it is ready.
    pub async fn start(dir: &Path, options: Options) -> Result<Self> {
        Self::start_keelson(&built::agent()?, dir, options).await
    }

    /// The same for another build of it.
    pub async fn start_keelson(program: &Path, dir: &Path, mut options: Options) -> Result<Self> {
        let socket = dir.join(&options.node).join(SOCKET);
        options.flags.push(format!("--socket={}", socket.display()));
        Self::start_program(program, dir, options).await
    }

    /// The same for another program that takes the kubelet's flags and configuration.
    pub async fn start_program(program: &Path, dir: &Path, options: Options) -> Result<Self> {
        let dir = folder(dir, &options.node)?;
        let supervisor = Supervisor::listen(&dir.join("notify.sock"))?;
        let mut agent =
            Self { options, dir, program: program.into(), supervisor, daemon: None, starts: 0, memory: None };
        agent.prepare()?;
        agent.launch()?;
        agent.wait_ready().await?;
        Ok(agent)
    }

    pub fn node(&self) -> &str {
        &self.options.node
    }

    /// Its root directory: pods' volumes and state.
    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The directory it takes static pods from.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("pod-logs")
    }

    /// The cgroup below which its pods are.
    pub fn cgroup_root(&self) -> String {
        // Several agents of one run may have the same name, one after the other; their folders differ.
        let folder = self.dir.parent().and_then(|p| p.file_name()).unwrap_or_default().to_string_lossy();
        format!("{}/{folder}-{}", isolation::cgroup_name(), self.options.node)
    }

    /// Where its HTTPS API listens, on every address of the node.
    pub fn api_port(&self) -> Result<u16> {
        self.configured_port("port")
    }

    pub fn healthz_port(&self) -> Result<u16> {
        self.configured_port("healthzPort")
    }

    fn configured_port(&self, field: &str) -> Result<u16> {
        let config: Value = serde_json::from_str(&fs::read_to_string(self.dir.join("config.yaml"))?)?;
        let port = config[field].as_u64().and_then(|p| u16::try_from(p).ok());
        port.with_context(|| format!("{field} of {} is no port", self.options.node))
    }

    pub fn process_id(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::id)
    }

    /// The log of the current start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join(format!("agent-{}.log", self.starts))
    }

    /// The running agent's effective table of pods, over its local socket.
    pub async fn pods(&self) -> Result<Vec<Value>> {
        let socket = self.socket().display().to_string();
        let out = output(&self.program, &["pods", "-o", "json", "--socket", &socket]).await?;
        let rows: Value =
            serde_json::from_str(&out).with_context(|| format!("`keelson pods -o json` said {out:?}"))?;
        let rows = rows.get("pods").unwrap_or(&rows).as_array().cloned();
        rows.with_context(|| format!("`keelson pods -o json` is no list: {out}"))
    }

    /// What `keelson why` says of a pod, as JSON.
    pub async fn why(&self, pod: &str) -> Result<Value> {
        let out = self.why_with(&[pod, "-o", "json"]).await?;
        serde_json::from_str(&out).with_context(|| format!("`keelson why -o json` said {out:?}"))
    }

    /// What `keelson why` prints.
    pub async fn why_with(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.socket().display().to_string();
        output(&self.program, &[&["why", "--socket", &socket], arguments].concat()).await
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join(SOCKET)
    }

    /// Launches the process, without waiting for it.
    pub fn launch(&mut self) -> Result<()> {
        ensure!(self.daemon.is_none(), "the agent runs already");
        self.starts += 1;
        // A kubelet knows nothing of a local socket and of archives.
        let own = self.program.file_name().is_none_or(|name| name != "kubelet");
        let mut command = self.supervisor.command(&self.program)?;
        command
            .arg(format!("--config={}", self.dir.join("config.yaml").display()))
            .arg(format!("--root-dir={}", self.root_dir().display()))
            .arg(format!("--hostname-override={}", self.options.node))
            .args(self.options.flags.iter().filter(|flag| {
                own || !["--socket=", "--image-dir="].iter().any(|ours| flag.starts_with(ours))
            }));
        if !self.options.flags.iter().any(|flag| flag.starts_with("--node-ip=")) {
            command.arg(format!("--node-ip={}", isolation::NODE_IP));
        }
        if let Some(kubeconfig) = &self.options.kubeconfig {
            command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        }
        let daemon = Daemon::spawn("the agent", command, &self.log_file());
        self.supervisor.spawned()?;
        let daemon = self.daemon.insert(daemon?);
        match self.memory {
            Some(bytes) => {
                let name = format!("{}/limited-{}", isolation::cgroup_name(), self.options.node);
                cgroups::limit_memory(&name, daemon.id(), bytes)
            }
            None => Ok(()),
        }
    }

    /// What the agent may take from its next start on, all that the kernel keeps for it included; it is ended by the
    /// kernel where it takes more. None: as much as there is.
    pub fn limit_memory(&mut self, bytes: Option<u64>) {
        self.memory = bytes;
    }

    /// Waits for READY=1, the notification that systemd would get.
    pub async fn wait_ready(&mut self) -> Result<()> {
        until("the agent says READY=1", Duration::from_secs(60), async || {
            if let Some(daemon) = &mut self.daemon {
                daemon.check_alive()?;
            }
            Ok(self.supervisor.is_ready()?.then_some(()))
        })
        .await
    }

    /// An error if it has ended by itself.
    pub fn check_alive(&mut self) -> Result<()> {
        self.daemon.as_mut().context("the agent is not running")?.check_alive()
    }

    /// SIGKILL, as a crash.
    pub fn kill(&mut self) -> Result<()> {
        self.daemon.take().context("the agent is not running")?.kill()?;
        Ok(())
    }

    /// SIGTERM; the pods stay.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        self.daemon.take().context("the agent is not running")?.stop(Duration::from_secs(20)).await
    }

    /// Has another program, such as a kubelet, go on where this one was ended: with the same directories, configuration and
    /// identity.
    pub async fn hand_over(&mut self, program: &Path) -> Result<()> {
        ensure!(self.daemon.is_none(), "the agent still runs");
        self.program = program.into();
        self.restart().await
    }

    pub async fn restart(&mut self) -> Result<()> {
        self.launch()?;
        self.wait_ready().await
    }

    /// Writes a manifest into its directory in one step.
    pub fn place_manifest(&self, file: &str, content: &str) -> Result<()> {
        let half = self.dir.join("half-written");
        fs::write(&half, content)?;
        fs::rename(&half, self.manifests().join(file)).context("cannot place the manifest")
    }

    pub fn remove_manifest(&self, file: &str) -> Result<()> {
        fs::remove_file(self.manifests().join(file)).with_context(|| format!("cannot remove manifest {file}"))
    }

    fn prepare(&self) -> Result<()> {
        for path in [self.root_dir(), self.manifests(), self.pod_logs()] {
            fs::create_dir_all(&path)?;
        }
        cgroups::make(&isolation::cgroup_name())?;
        cgroups::make(&self.cgroup_root())?;
        let mut config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": self.options.runtime_endpoint,
            "staticPodPath": self.manifests(), "podLogsDir": self.pod_logs(),
            "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{}", self.cgroup_root()),
            "failSwapOn": false, "failCgroupV1": false, "enableServer": true,
            "address": "0.0.0.0", "port": free_port()?,
            "healthzBindAddress": "127.0.0.1", "healthzPort": free_port()?,
            "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local",
            "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": self.options.kubeconfig.is_some()}},
            "authorization": {"mode": if self.options.kubeconfig.is_some() { "Webhook" } else { "AlwaysAllow" }},
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%",
                             "imagefs.available": "1%"},
            "shutdownGracePeriod": "0s", "serializeImagePulls": false, "maxPods": 250,
        });
        if let Some(ca) = &self.options.client_ca {
            config["authentication"]["x509"] = json!({"clientCAFile": ca});
        }
        if let Some(pair) = &self.options.serving {
            config["tlsCertFile"] = json!(pair.cert);
            config["tlsPrivateKeyFile"] = json!(pair.key);
        }
        if let (Some(into), Value::Object(from)) = (config.as_object_mut(), self.options.config.clone()) {
            into.extend(from);
        }
        fs::write(self.dir.join("config.yaml"), serde_json::to_string_pretty(&config)?)
            .context("cannot write config.yaml")
    }
}
