//! kubectl, with the admin's rights.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::parts::Part;
use crate::process::output_of;

#[derive(Clone)]
pub struct Kubectl {
    kubeconfig: PathBuf,
    variables: Vec<(&'static str, &'static str)>,
}

impl Kubectl {
    pub fn new(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.into(), variables: vec![] }
    }

    /// One that streams over SPDY, as older ones do; the usual one uses WebSockets.
    pub fn over_spdy(&self) -> Self {
        let variables = vec![
            ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"),
            ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false"),
        ];
        Self { variables, ..self.clone() }
    }

    pub async fn run(&self, args: &[&str]) -> Result<String> {
        let mut command = self.command()?;
        command.args(args);
        output_of(command).await
    }

    /// Starts it with its output as a pipe, for what goes on. It ends when dropped.
    pub fn follow(&self, args: &[&str]) -> Result<Child> {
        let mut command = self.command()?;
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().context("cannot start kubectl")
    }

    /// `kubectl apply` of a manifest in YAML or JSON.
    pub async fn apply(&self, manifest: &str) -> Result<()> {
        self.apply_with(manifest, &[]).await
    }

    /// The same with further flags.
    pub async fn apply_with(&self, manifest: &str, flags: &[&str]) -> Result<()> {
        let mut command = self.command()?;
        command
            .args(["apply", "-f", "-"])
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start kubectl")?;
        let mut input = child.stdin.take().context("kubectl without an input")?;
        input.write_all(manifest.as_bytes()).await?;
        drop(input);
        let out = child.wait_with_output().await?;
        ensure!(out.status.success(), "kubectl apply: {}", String::from_utf8_lossy(&out.stderr).trim());
        Ok(())
    }

    /// For what is not just run to its end. Dies when dropped.
    pub fn command(&self) -> Result<Command> {
        self.command_in(Command::new(Part::Kubectl.program()?))
    }

    /// kubectl as the controlling process of the terminal that is its input.
    pub fn command_with_terminal(&self) -> Result<Command> {
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(Part::Kubectl.program()?);
        self.command_in(command)
    }

    fn command_in(&self, mut command: Command) -> Result<Command> {
        command.envs(self.variables.iter().copied());
        // What it caches goes with the run.
        let home = self.kubeconfig.parent().unwrap_or(Path::new("/tmp"));
        command.arg("--kubeconfig").arg(&self.kubeconfig).env("HOME", home).kill_on_drop(true);
        Ok(command)
    }
}
