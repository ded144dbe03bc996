//! Images made on the spot: a static busybox under a few names, and a pause image, in one OCI archive.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use keelson_image::{Arch, Image};
pub use keelson_image::{Layer, LayerBuilder};
use serde_json::{Value, json};

/// The image the tests' containers run; it has a shell and the usual small tools.
pub const BUSYBOX: &str = "docker.io/library/busybox:1.36";
/// The same files under another name and another digest, for a changed image.
pub const BUSYBOX_NEXT: &str = "docker.io/library/busybox:1.37";
/// For registries: what was pulled under one name is a private image to all others, so no test's own container runs these under
/// the names that they have here.
pub const PUBLISHED: &str = "docker.io/library/published:1";
pub const PUBLISHED_NEXT: &str = "docker.io/library/published:2";
pub const PUBLISHED_LAST: &str = "docker.io/library/published:3";
/// The sandbox image that the rig's containerd is configured with.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10";
/// An image whose user is a name, for what runAsNonRoot must refuse.
pub const NAMED_USER: &str = "docker.io/library/named-user:1";

/// Packs the standard images into `dir/images.tar`.
pub fn pack_standard(dir: &Path) -> Result<PathBuf> {
    let (busybox, pause) = (busybox_layer(dir)?, pause_layer(dir)?);
    let path = dir.join("images.tar");
    let mut archive = Archive::default();
    archive.add(BUSYBOX, &[&busybox], json!({"Cmd": ["sh"]}))?;
    archive.add(BUSYBOX_NEXT, &[&busybox], json!({"Cmd": ["sh"], "Labels": {"next": "yes"}}))?;
    for name in [PUBLISHED, PUBLISHED_NEXT, PUBLISHED_LAST] {
        archive.add(name, &[&busybox], json!({"Cmd": ["sh"], "Labels": {"published": name}}))?;
    }
    archive.add(NAMED_USER, &[&busybox], json!({"Cmd": ["sh"], "User": "nobody"}))?;
    archive.add(PAUSE, &[&pause], json!({"Entrypoint": ["/pause"]}))?;
    archive.write(&path)?;
    Ok(path)
}

/// Images in the making, for one archive.
#[derive(Default)]
pub struct Archive<'a>(Vec<Image<'a>>);

impl<'a> Archive<'a> {
    /// Adds an image of these layers under `name`. A layer that several images share is kept once.
    pub fn add(&mut self, name: &str, layers: &[&'a Layer], config: Value) -> Result<()> {
        self.0.push(Image {
            names: vec![name.to_owned()],
            architecture: Arch::default(),
            config: serde_json::from_value(config).with_context(|| format!("configuration of {name}"))?,
            layers: layers.to_vec(),
        });
        Ok(())
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        Ok(keelson_image::write_archive(&self.0, path)?)
    }
}

/// The static busybox of the machine with a link for each of its tools, and the few files a user database needs.
pub fn busybox_layer(scratch: &Path) -> Result<Layer> {
    let program = busybox()?;
    let out = std::process::Command::new(&program).arg("--list").output()?;
    let tools = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut layer = LayerBuilder::new_in(scratch)?;
    for dir in ["bin", "etc", "tmp", "root", "var", "var/run", "usr", "usr/bin", "proc", "sys", "dev", "www"]
    {
        layer.directory(dir, if dir == "tmp" { 0o1777 } else { 0o755 })?;
    }
    layer.file("bin/busybox", &fs::read(&program)?, 0o755)?;
    for tool in tools.split_whitespace().filter(|t| *t != "busybox") {
        layer.link(&format!("bin/{tool}"), "/bin/busybox")?;
    }
    let users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
    layer.file("etc/passwd", users.as_bytes(), 0o644)?;
    layer.file("etc/group", b"root:x:0:\nnobody:x:65534:\n", 0o644)?;
    Ok(layer.finish()?)
}

/// The project's own pause program where it was built, else busybox asleep under that name.
pub fn pause_layer(scratch: &Path) -> Result<Layer> {
    let mut layer = LayerBuilder::new_in(scratch)?;
    if let Some(pause) = own_pause() {
        layer.file("pause", &fs::read(pause)?, 0o755)?;
    } else {
        layer.directory("bin", 0o755)?;
        layer.file("bin/sh", &fs::read(busybox()?)?, 0o755)?;
        layer.file(
            "pause",
            b"#!/bin/sh\ntrap 'exit 0' TERM INT\nwhile :; do sleep 2147483647 & wait $!; done\n",
            0o755,
        )?;
    }
    Ok(layer.finish()?)
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
