//! A whole machine under qemu: its own kernel, systemd and cgroup v2. The same machine booted again is a reboot.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use crate::parts::Part;
use crate::suite::folder;

pub struct Machine {
    image: PathBuf,
    state: PathBuf,
    devices: &'static str,
}

impl Machine {
    /// A machine whose disk is fresh.
    pub fn new(dir: &Path) -> Result<Self> {
        let state = folder(dir, "machine")?;
        folder(&state, "host")?;
        Ok(Self { image: Part::Machine.dir()?, state, devices: "" })
    }

    /// With a network card, behind which the addresses are that this process can reach.
    pub fn with_network(self) -> Self {
        Self { devices: "-netdev user,id=outside -device virtio-net-pci,netdev=outside", ..self }
    }

    /// What it has printed since its boot, while it runs too.
    pub fn console(&self) -> String {
        let said = fs::read(self.state.join("console")).unwrap_or_default();
        String::from_utf8_lossy(&said).replace('\r', "")
    }

    /// Puts a file into /host inside, as of the next boot.
    pub fn put(&self, name: &str, content: &[u8], mode: u32) -> Result<()> {
        let path = self.state.join("host").join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, content)?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
    }

    pub fn put_file(&self, name: &str, from: &Path, mode: u32) -> Result<()> {
        self.put(name, &fs::read(from).with_context(|| format!("cannot read {}", from.display()))?, mode)
    }

    /// Boots, runs a shell script inside as root, powers off. Returns what it printed; an error when it failed.
    pub async fn boot(&self, script: &str, limit: Duration) -> Result<String> {
        self.put("run", format!("#!/bin/sh\nset -eu\n{script}").as_bytes(), 0o755)?;
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("machine.sh");
        let out = Command::new(program)
            .arg("boot")
            .args([&self.image, &self.state])
            .env("MACHINE_TIMEOUT", limit.as_secs().to_string())
            .env("QEMU_ARGS", self.devices)
            .kill_on_drop(true)
            .output()
            .await
            .context("cannot run machine.sh")?;
        let said = String::from_utf8_lossy(&out.stdout).replace('\r', "");
        if !out.status.success() {
            bail!(
                "inside the machine: {}: {}\n{said}",
                out.status,
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        Ok(said)
    }
}
