//! A part that runs in the background: its own process group, its output in a log file, gone when dropped.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::logs;
use crate::wait::Hopeless;

pub struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts a program with its output appended to `log`.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open the log {}", log.display()))?;
        let program = command.get_program().to_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", Path::new(&program).display()))?;
        Ok(Self { name: name.into(), child, log: log.into() })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// An error with the end of its log if the process has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let end = logs::tail(&self.log, 15);
            bail!(Hopeless(format!("{} ended with {status}; the end of its log:\n{end}", self.name)));
        }
        Ok(())
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid()?, signal).with_context(|| format!("cannot signal {}", self.name))
    }

    /// Kills it, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        Ok(self.child.wait()?)
    }

    /// Asks it to end and waits for it; an error if it takes longer than `limit`.
    pub async fn stop(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.ended(limit).await
    }

    /// Waits until it has ended by itself; an error if it takes longer than `limit`.
    pub async fn ended(&mut self, limit: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > end {
                bail!("{} still runs after {} s", self.name, limit.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn pid(&self) -> Result<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process id out of range")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let (Ok(None), Ok(pid)) = (self.child.try_wait(), self.pid()) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Runs a program to its end and returns what it printed; an error carries what it complained about.
pub async fn output(program: impl AsRef<OsStr>, args: &[&str]) -> Result<String> {
    let mut command = tokio::process::Command::new(program);
    command.args(args);
    output_of(command).await
}

/// Like `output`, for a command that was prepared further.
pub async fn output_of(mut command: tokio::process::Command) -> Result<String> {
    let shown = format!("{:?}", command.as_std());
    let out = command.kill_on_drop(true).output().await.with_context(|| format!("cannot run {shown}"))?;
    if !out.status.success() {
        bail!("{shown}: {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}
