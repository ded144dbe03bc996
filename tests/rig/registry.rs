//! A registry on loopback: Debian's docker-registry, without TLS, for everybody or for one user.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::containerd::Containerd;
use crate::process::Daemon;
use crate::suite::folder;
use crate::wait::{free_port, until_true};

pub const PROGRAM: &str = "docker-registry";

/// The one user of a private registry.
pub const USER: &str = "someone";
pub const PASSWORD: &str = "secret";
/// Both as htpasswd writes them; the registry takes bcrypt only.
const USERS: &str = "someone:$2a$05$p93eoxluvidTu347tmliIuMTX1XBnmziyLwHPSCRPWR0GH.3QGpxi\n";

pub struct Registry {
    host: String,
    private: bool,
    _daemon: Daemon,
}

impl Registry {
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::launch(folder(dir, "registry")?, false).await
    }

    /// One that only [`USER`] may use.
    pub async fn start_private(dir: &Path) -> Result<Self> {
        Self::launch(folder(dir, "private-registry")?, true).await
    }

    async fn launch(dir: PathBuf, private: bool) -> Result<Self> {
        let program = keelson_require::program(PROGRAM)?;
        let host = format!("127.0.0.1:{}", free_port()?);
        let users = dir.join("users");
        fs::write(&users, USERS)?;
        let auth = match private {
            true => format!("auth: {{htpasswd: {{realm: rig, path: {}}}}}\n", users.display()),
            false => String::new(),
        };
        let config = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage:\n  filesystem: {{rootdirectory: {}/data}}\n  delete: {{enabled: true}}\n\
             http: {{addr: \"{host}\"}}\n{auth}",
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
        Ok(Self { host, private, _daemon: daemon })
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
        let user = format!("--user={USER}:{PASSWORD}");
        let mut push = vec!["-n", "k8s.io", "images", "push", "--plain-http"];
        push.extend(self.private.then_some(user.as_str()));
        push.push(&name);
        let pushed = runtime.ctr(&push).await;
        runtime.ctr(&["-n", "k8s.io", "images", "rm", &name]).await?;
        pushed.with_context(|| format!("cannot push {name}"))?;
        Ok(name)
    }
}
