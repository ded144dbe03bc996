//! A containerd of its own: its own directories, socket, shims and pod network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::cni::{self, Network};
use crate::images;
use crate::parts::Part;
use crate::process::{Daemon, output};
use crate::suite::folder;
use crate::wait::until;

/// Which containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The distribution's (Debian 12 has 1.6), which offers no container events.
    Distribution,
    /// 2.x, built from its public module, with container events.
    V2,
    /// The same on a runc that can map mounts, so that pods can have users of their own.
    V2WithRunc,
}

pub struct Containerd {
    kind: Kind,
    dir: PathBuf,
    network: Network,
    daemon: Option<Daemon>,
}

impl Containerd {
    /// Starts one in `dir` with the standard images loaded. `number` sets its pod network apart from others of the run.
    pub async fn start(kind: Kind, dir: &Path, number: u8) -> Result<Self> {
        let dir = folder(dir, "containerd")?;
        let network = cni::prepare(&dir, number)?;
        let mut this = Self { kind, dir, network, daemon: None };
        fs::write(this.dir.join("config.toml"), this.config())?;
        this.launch().await?;
        this.import(&images::pack_standard(&this.dir)?).await?;
        Ok(this)
    }

    /// The socket's path.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    /// The socket as an agent's configuration names it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    pub fn process_id(&self) -> Option<u32> {
        self.daemon.as_ref().map(Daemon::id)
    }

    /// Starts it (again) and waits for its answer.
    pub async fn launch(&mut self) -> Result<()> {
        let mut command = Command::new(self.program("containerd")?);
        command.arg("--config").arg(self.dir.join("config.toml"));
        // Its own shim comes before any other that the machine may have.
        let path = std::env::var("PATH").unwrap_or_default();
        let mut own =
            self.program("containerd")?.parent().map(|p| p.display().to_string()).unwrap_or_default();
        if self.kind == Kind::V2WithRunc {
            own = format!("{own}:{}", Part::Runc.dir()?.display());
        }
        command.env("PATH", format!("{own}:{path}:/usr/sbin:/sbin"));
        self.daemon = Some(Daemon::spawn("containerd", command, &self.dir.join("containerd.log"))?);
        until("containerd answers", Duration::from_secs(30), async || {
            if let Some(daemon) = &mut self.daemon {
                daemon.check_alive()?;
            }
            Ok(Some(self.ctr(&["version"]).await?))
        })
        .await?;
        Ok(())
    }

    /// Ends it in good order; its containers go on.
    pub async fn stop(&mut self) -> Result<ExitStatus> {
        let mut daemon = self.daemon.take().context("containerd is not running")?;
        daemon.stop(Duration::from_secs(20)).await
    }

    /// Makes it hang: it neither answers nor closes its connections.
    pub fn freeze(&self) -> Result<()> {
        self.daemon.as_ref().context("containerd is not running")?.signal(Signal::STOP)
    }

    pub fn thaw(&self) -> Result<()> {
        self.daemon.as_ref().context("containerd is not running")?.signal(Signal::CONT)
    }

    /// Loads an OCI archive.
    pub async fn import(&self, archive: &Path) -> Result<()> {
        self.ctr(&["-n", "k8s.io", "images", "import", "--all-platforms", &archive.display().to_string()])
            .await?;
        Ok(())
    }

    /// Runs containerd's own client against it.
    pub async fn ctr(&self, args: &[&str]) -> Result<String> {
        let socket = self.socket().display().to_string();
        output(self.program("ctr")?, &[&["--address", &socket], args].concat()).await
    }

    fn program(&self, name: &str) -> Result<PathBuf> {
        match self.kind {
            Kind::Distribution => Ok(Path::new("/usr/bin").join(name)),
            Kind::V2 | Kind::V2WithRunc => Ok(Part::Containerd2.dir()?.join(name)),
        }
    }

    /// The oom score is not lowered below containerd's own, since the machine may withhold the right to; unused plugins
    /// are off, since they probe the machine at every start.
    fn config(&self) -> String {
        let dir = self.dir.display();
        let bin = self.network.bin_dir.display();
        let conf = self.network.conf_dir.display();
        let pause = images::PAUSE;
        let head = format!(
            "root = \"{dir}/root\"\nstate = \"{dir}/state\"\noom_score = 0\n\n\
             [grpc]\n  address = \"{dir}/containerd.sock\"\n\n[debug]\n  level = \"info\"\n  address = \"{dir}/debug.sock\"\n\n\
             [ttrpc]\n  address = \"{dir}/ttrpc.sock\"\n\n"
        );
        let registry = format!("{dir}/registries");
        match self.kind {
            Kind::Distribution => format!(
                "version = 2\ndisabled_plugins = [\"io.containerd.snapshotter.v1.aufs\", \"io.containerd.snapshotter.v1.btrfs\", \
                 \"io.containerd.snapshotter.v1.zfs\", \"io.containerd.snapshotter.v1.devmapper\", \
                 \"io.containerd.internal.v1.tracing\", \"io.containerd.tracing.processor.v1.otlp\"]\n{head}\
                 [plugins.\"io.containerd.internal.v1.opt\"]\n  path = \"{dir}/opt\"\n\n\
                 [plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"{pause}\"\n  restrict_oom_score_adj = true\n  \
                 enable_unprivileged_ports = true\n\
                 [plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"{bin}\"\n  conf_dir = \"{conf}\"\n\
                 [plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"{registry}\"\n"
            ),
            Kind::V2 | Kind::V2WithRunc => format!(
                "version = 3\ndisabled_plugins = [\"io.containerd.snapshotter.v1.blockfile\", \"io.containerd.snapshotter.v1.btrfs\", \
                 \"io.containerd.snapshotter.v1.zfs\", \"io.containerd.snapshotter.v1.devmapper\", \
                 \"io.containerd.internal.v1.tracing\", \"io.containerd.tracing.processor.v1.otlp\", \
                 \"io.containerd.nri.v1.nri\"]\n{head}\
                 [plugins.'io.containerd.internal.v1.opt']\n  path = \"{dir}/opt\"\n\n\
                 [plugins.'io.containerd.cri.v1.images'.pinned_images]\n  sandbox = \"{pause}\"\n\
                 [plugins.'io.containerd.cri.v1.images'.registry]\n  config_path = \"{registry}\"\n\
                 [plugins.'io.containerd.cri.v1.runtime']\n  restrict_oom_score_adj = true\n\
                 [plugins.'io.containerd.cri.v1.runtime'.cni]\n  bin_dirs = [\"{bin}\"]\n  conf_dir = \"{conf}\"\n"
            ),
        }
    }

    /// Configures the runtime to reach a registry without TLS.
    pub fn trust_registry(&self, host: &str) -> Result<()> {
        self.redirect_registry(host, host)
    }

    /// Has the runtime look at `host`, without TLS, for the images of another registry.
    pub fn redirect_registry(&self, name: &str, host: &str) -> Result<()> {
        let dir = self.dir.join("registries").join(name);
        fs::create_dir_all(&dir)?;
        let hosts = format!(
            "server = \"http://{host}\"\n[host.\"http://{host}\"]\n  capabilities = [\"pull\", \"resolve\"]\n"
        );
        fs::write(dir.join("hosts.toml"), hosts).context("cannot write the registry's hosts.toml")
    }

    /// Takes that back.
    pub fn forget_registry(&self, name: &str) -> Result<()> {
        fs::remove_dir_all(self.dir.join("registries").join(name))
            .context("cannot remove the registry's hosts.toml")
    }
}
