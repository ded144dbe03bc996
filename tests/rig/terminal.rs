//! A terminal for programs that want one.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::process::{Child, Command};

/// The side that a person would sit at.
pub struct Terminal {
    near: File,
    seen: Vec<u8>,
    child: Child,
}

impl Terminal {
    /// Starts the program with this terminal as its input and outputs.
    pub fn start(mut command: Command, rows: u16, columns: u16) -> Result<Self> {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&near)?;
        unlockpt(&near)?;
        let name = PathBuf::from(ptsname(&near, vec![])?.into_string()?);
        let far = File::options().read(true).write(true).open(name).context("cannot open the terminal")?;
        set_size(&near, rows, columns)?;
        rustix::io::ioctl_fionbio(&near, true)?;
        let child = command
            .stdin(Stdio::from(far.try_clone()?))
            .stdout(Stdio::from(far.try_clone()?))
            .stderr(Stdio::from(far))
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a program on a terminal")?;
        Ok(Self { near: near.into(), seen: vec![], child })
    }

    pub fn type_in(&mut self, text: &str) -> Result<()> {
        self.near.write_all(text.as_bytes()).context("cannot type")
    }

    pub fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        set_size(&self.near, rows, columns)
    }

    /// Waits until `text` was shown, and forgets what was shown up to there.
    pub async fn wait_for(&mut self, text: &str, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            let mut buffer = [0; 4096];
            match self.near.read(&mut buffer) {
                Ok(read) if read > 0 => self.seen.extend_from_slice(&buffer[..read]),
                // Nothing yet, or everybody on the other side has gone.
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
            let shown = String::from_utf8_lossy(&self.seen).into_owned();
            if let Some(at) = shown.find(text) {
                self.seen = shown.as_bytes()[at + text.len()..].to_vec();
                return Ok(());
            }
            if Instant::now() > end {
                bail!("the terminal does not show {text:?} but {shown:?}");
            }
        }
    }

    /// Waits until the program has ended, and returns all that it has shown.
    pub async fn rest(&mut self, limit: Duration) -> Result<String> {
        let ended = tokio::time::timeout(limit, self.child.wait()).await;
        ended.context("the program on the terminal does not end")??;
        let mut buffer = [0; 4096];
        // An error when everybody on the other side has gone and everything was read.
        while let Ok(read @ 1..) = self.near.read(&mut buffer) {
            self.seen.extend_from_slice(&buffer[..read]);
        }
        Ok(String::from_utf8_lossy(&self.seen).into_owned())
    }

    pub async fn ended(&mut self) -> Result<std::process::ExitStatus> {
        Ok(self.child.wait().await?)
    }
}

fn set_size(near: impl std::os::fd::AsFd, rows: u16, columns: u16) -> Result<()> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(near, size).context("cannot set the terminal's size")
}
