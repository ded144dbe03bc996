//! A registry on loopback: Debian's docker-registry, without TLS.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::containerd::Containerd;
use crate::process::Daemon;
use crate::suite::folder;
use crate::wait::{free_port, until_true};

pub const PROGRAM: &str = "docker-registry";

pub struct Registry {
    host: String,
    _daemon: Daemon,
}

impl Registry {
    pub async fn start(dir: &Path) -> Result<Self> {
        let program = keelson_require::program(PROGRAM)?;
        let dir = folder(dir, "registry")?;
        let host = format!("127.0.0.1:{}", free_port()?);
        let config = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage:\n  filesystem: {{rootdirectory: {}/data}}\n  delete: {{enabled: true}}\n\
             http: {{addr: \"{host}\"}}\n",
            dir.display()
        );
        let file = dir.join("config.yml");
        fs::write(&file, config)?;
        let mut command = Command::new(program);
        command.arg("serve").arg(&file);
        let mut daemon = Daemon::spawn("docker-registry", command, &dir.join("registry.log"))?;
        until_true("the registry listens", Duration::from_secs(20), async || {
            daemon.check_alive()?;
            Ok(tokio::net::TcpStream::connect(&host).await.is_ok())
        })
        .await?;
        Ok(Self { host, _daemon: daemon })
    }

    /// The name under which an image lies here.
    pub fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.host)
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// Pushes an image that the runtime has, under a name of this registry, and forgets that name locally.
    pub async fn push(&self, runtime: &Containerd, from: &str, image: &str) -> Result<String> {
        let name = self.name(image);
        runtime.ctr(&["-n", "k8s.io", "images", "tag", "--force", from, &name]).await?;
        let pushed = runtime.ctr(&["-n", "k8s.io", "images", "push", "--plain-http", &name]).await;
        runtime.ctr(&["-n", "k8s.io", "images", "rm", &name]).await?;
        pushed.with_context(|| format!("cannot push {name}"))?;
        Ok(name)
    }
}
