//! Stand-ins, made of Debian's packages and the suite's own programs, for the images that the suite names.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use keelson_tests::images::{Archive, Layer, pause_layer};
use keelson_tests::parts::Part;
use serde_json::json;
use tokio::process::Command;

use crate::tool;

/// Packs what `e2e.test --list-images` names and has a stand-in into `dir/suite-images.tar`.
pub async fn pack(dir: &Path) -> Result<PathBuf> {
    let rootfs = std::fs::read(Part::E2eRootfs.dir()?.join("rootfs.tar"))?;
    let mut shell = Layer::default();
    // bash hands on variables whose names have dashes, as the shells of the real images do; dash does not.
    shell.directory("bin", 0o755)?.file("bin/sh", &bash()?, 0o755)?;
    let mut agnhost = Layer::default();
    let program = std::fs::read(tool("agnhost")?)?;
    agnhost.file("agnhost", &program, 0o755)?.link("agnhost-2", "agnhost")?;
    agnhost.directory("usr/bin", 0o755)?.file("usr/bin/sh", &bash()?, 0o755)?;
    let mut privileges = Layer::default();
    let path = "usr/local/bin/nnp";
    privileges.directory("usr/local/bin", 0o755)?.file(path, &std::fs::read(tool("nonewprivs")?)?, 0o6755)?;
    let (agnhost, privileges) = (agnhost.done()?, privileges.done()?);
    let busybox = keelson_tests::images::busybox_layer()?;
    let (shell, pause) = (shell.done()?, pause_layer()?);

    let mut archive = Archive::default();
    for name in named().await? {
        let config_and_layers: (serde_json::Value, Vec<&[u8]>) = match short(&name) {
            "agnhost" => (json!({"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}), vec![&rootfs, &agnhost]),
            "busybox" => (json!({"Cmd": ["sh"]}), vec![&busybox, &shell]),
            "nginx" | "nginx-new" => (json!({"Cmd": ["nginx", "-g", "daemon off;"]}), vec![&rootfs]),
            "nonroot" => (json!({"Cmd": ["sh"], "User": "1234"}), vec![&busybox, &shell]),
            "nonewprivs" => (json!({"Cmd": ["nnp"]}), vec![&busybox, &shell, &privileges]),
            "pause" => (json!({"Entrypoint": ["/pause"], "User": "65535:65535"}), vec![&pause]),
            _ => continue,
        };
        let (config, layers) = config_and_layers;
        archive.add(&name, &layers, config)?;
    }
    let path = dir.join("suite-images.tar");
    archive.write(&path)?;
    Ok(path)
}

async fn named() -> Result<Vec<String>> {
    let out = Command::new(tool("e2e.test")?).arg("--list-images").output().await?;
    ensure!(out.status.success(), "e2e.test --list-images: {}", String::from_utf8_lossy(&out.stderr).trim());
    let names = String::from_utf8(out.stdout).context("names of images")?;
    Ok(names.lines().map(str::trim).filter(|l| l.contains(':')).map(str::to_owned).collect())
}

/// `agnhost` of `registry/e2e-test-images/agnhost:2.63.0`.
fn short(name: &str) -> &str {
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split(':').next().unwrap_or(last)
}

fn bash() -> Result<Vec<u8>> {
    std::fs::read("/bin/bash-static").context("/bin/bash-static is missing: install bash-static")
}
