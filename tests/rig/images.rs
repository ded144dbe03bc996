//! Images made on the spot: a static busybox under a few names, and a pause image, in one OCI archive.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The image the tests' containers run; it has a shell and the usual small tools.
pub const BUSYBOX: &str = "docker.io/library/busybox:1.36";
/// The same files under another name and another digest, for a changed image.
pub const BUSYBOX_NEXT: &str = "docker.io/library/busybox:1.37";
/// The sandbox image that the rig's containerd is told to use.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10";
/// An image whose user is a name, for what runAsNonRoot must refuse.
pub const NAMED_USER: &str = "docker.io/library/named-user:1";

/// Packs the standard images into `dir/images.tar`.
pub fn pack_standard(dir: &Path) -> Result<PathBuf> {
    let busybox = busybox_layer()?;
    let path = dir.join("images.tar");
    let mut archive = Archive::default();
    archive.add(BUSYBOX, &[&busybox], json!({"Cmd": ["sh"]}))?;
    archive.add(BUSYBOX_NEXT, &[&busybox], json!({"Cmd": ["sh"], "Labels": {"next": "yes"}}))?;
    archive.add(NAMED_USER, &[&busybox], json!({"Cmd": ["sh"], "User": "nobody"}))?;
    archive.add(PAUSE, &[&pause_layer()?], json!({"Entrypoint": ["/pause"]}))?;
    archive.write(&path)?;
    Ok(path)
}

/// An OCI image layout in the making.
#[derive(Default)]
pub struct Archive {
    blobs: BTreeMap<String, Vec<u8>>,
    manifests: Vec<Value>,
}

impl Archive {
    /// Adds an image of these layers (tar streams) under `name`. A layer that several images share is kept once.
    pub fn add(&mut self, name: &str, layers: &[&[u8]], config: Value) -> Result<()> {
        let digests: Vec<String> = layers.iter().map(|layer| self.blob(layer)).collect();
        let descriptors: Vec<Value> = digests
            .iter()
            .zip(layers)
            .map(|(digest, layer)| {
                json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": layer.len()})
            })
            .collect();
        let mut config_section = json!({"Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]});
        if let (Some(into), Value::Object(from)) = (config_section.as_object_mut(), config) {
            into.extend(from);
        }
        let config = serde_json::to_vec(&json!({
            "architecture": architecture(), "os": "linux", "config": config_section,
            "rootfs": {"type": "layers", "diff_ids": digests},
        }))?;
        let config_digest = self.blob(&config);
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config_digest,
                       "size": config.len()},
            "layers": descriptors,
        }))?;
        let digest = self.blob(&manifest);
        self.manifests.push(json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": manifest.len(),
            "platform": {"architecture": architecture(), "os": "linux"},
            "annotations": {"io.containerd.image.name": name,
                            "org.opencontainers.image.ref.name": name.rsplit(':').next().unwrap_or(name)},
        }));
        Ok(())
    }

    fn blob(&mut self, data: &[u8]) -> String {
        let hex: String = Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect();
        self.blobs.entry(hex.clone()).or_insert_with(|| data.to_vec());
        format!("sha256:{hex}")
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut tar = tar::Builder::new(file);
        let mut add = |name: &str, data: &[u8]| entry(&mut tar, name, data, 0o644);
        add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add("index.json", &serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": self.manifests}))?)?;
        for (hex, data) in &self.blobs {
            add(&format!("blobs/sha256/{hex}"), data)?;
        }
        tar.finish()?;
        Ok(())
    }
}

/// A layer in the making.
pub struct Layer(tar::Builder<Vec<u8>>);

impl Default for Layer {
    fn default() -> Self {
        Self(tar::Builder::new(vec![]))
    }
}

impl Layer {
    pub fn directory(&mut self, name: &str, mode: u32) -> Result<&mut Self> {
        directory(&mut self.0, name, mode)?;
        Ok(self)
    }

    pub fn file(&mut self, name: &str, data: &[u8], mode: u32) -> Result<&mut Self> {
        entry(&mut self.0, name, data, mode)?;
        Ok(self)
    }

    pub fn link(&mut self, name: &str, to: &str) -> Result<&mut Self> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        self.0.append_link(&mut header, name, to)?;
        Ok(self)
    }

    pub fn done(self) -> Result<Vec<u8>> {
        Ok(self.0.into_inner()?)
    }
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// The static busybox of the machine with a link for each of its tools, and the few files a user database needs.
pub fn busybox_layer() -> Result<Vec<u8>> {
    let program = busybox()?;
    let out = std::process::Command::new(&program).arg("--list").output()?;
    let tools = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut tar = tar::Builder::new(vec![]);
    for dir in ["bin", "etc", "tmp", "root", "var", "var/run", "usr", "usr/bin", "proc", "sys", "dev", "www"]
    {
        directory(&mut tar, dir, if dir == "tmp" { 0o1777 } else { 0o755 })?;
    }
    entry(&mut tar, "bin/busybox", &fs::read(&program)?, 0o755)?;
    for tool in tools.split_whitespace().filter(|t| *t != "busybox") {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        tar.append_link(&mut header, format!("bin/{tool}"), "/bin/busybox")?;
    }
    let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
    entry(&mut tar, "etc/passwd", users.as_bytes(), 0o644)?;
    entry(&mut tar, "etc/group", b"root:x:0:\nnobody:x:65534:\n", 0o644)?;
    Ok(tar.into_inner()?)
}

/// The project's own pause program where it was built, else busybox asleep under that name.
pub fn pause_layer() -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(vec![]);
    if let Some(pause) = own_pause() {
        entry(&mut tar, "pause", &fs::read(pause)?, 0o755)?;
    } else {
        directory(&mut tar, "bin", 0o755)?;
        entry(&mut tar, "bin/sh", &fs::read(busybox()?)?, 0o755)?;
        entry(
            &mut tar,
            "pause",
            b"#!/bin/sh\ntrap 'exit 0' TERM INT\nwhile :; do sleep 2147483647 & wait $!; done\n",
            0o755,
        )?;
    }
    Ok(tar.into_inner()?)
}

fn own_pause() -> Option<PathBuf> {
    let given = std::env::var_os("KEELSON_PAUSE").map(PathBuf::from);
    given.or_else(|| Some(crate::built::target_dir().parent()?.join("pause"))).filter(|p| p.is_file())
}

/// Debian's busybox-static; the dynamic one would not run in an image without libraries.
fn busybox() -> Result<PathBuf> {
    let found = ["/bin/busybox", "/usr/bin/busybox"].iter().map(PathBuf::from).find(|p| p.is_file());
    let program = found.context("busybox is missing: install busybox-static")?;
    // The name of its loader would stand right behind the headers.
    let head: Vec<u8> = fs::read(&program)?.into_iter().take(4096).collect();
    let dynamic = head.windows(9).any(|w| w == b"ld-linux-");
    ensure!(!dynamic, "{} needs shared libraries: install busybox-static", program.display());
    Ok(program)
}

fn entry(tar: &mut tar::Builder<impl std::io::Write>, name: &str, data: &[u8], mode: u32) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(data.len() as u64);
    header.set_mode(mode);
    Ok(tar.append_data(&mut header, name, data)?)
}

fn directory(tar: &mut tar::Builder<Vec<u8>>, name: &str, mode: u32) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_size(0);
    header.set_mode(mode);
    Ok(tar.append_data(&mut header, format!("{name}/"), std::io::empty())?)
}
