//! Stand-ins, made of Debian's packages and the suite's own programs, for the images that the suite names.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use keelson_tests::certs::Authority;
use keelson_tests::containerd::Containerd;
use keelson_tests::images::{Archive, Layer, LayerBuilder, pause_layer};
use keelson_tests::parts::Part;
use keelson_tests::registry::Registry;
use serde_json::json;
use tokio::process::Command;

use crate::tool;

/// Packs what `e2e.test --list-images` names and has a stand-in into `dir/suite-images.tar`.
pub async fn pack(dir: &Path) -> Result<PathBuf> {
    let rootfs = Layer::from_tar(&mut std::fs::File::open(Part::E2eRootfs.dir()?.join("rootfs.tar"))?, dir)?;
    let mut shell = LayerBuilder::new_in(dir)?;
    // By name it is bash, which hands on variables whose names have dashes, as the real images' shell does and Debian's busybox
    // does not. /bin/sh stays busybox's own, whose words the suite compares.
    shell.directory("usr/bin", 0o755)?.file("usr/bin/sh", &bash()?, 0o755)?;
    let agnhost = agnhost(dir)?;
    let mut privileges = LayerBuilder::new_in(dir)?;
    let path = "usr/local/bin/nnp";
    privileges.directory("usr/local/bin", 0o755)?.file(path, &std::fs::read(tool("nonewprivs")?)?, 0o6755)?;
    let (nautilus, kitten) = (picture(dir, "nautilus")?, picture(dir, "kitten")?);
    let privileges = privileges.finish()?;
    let busybox = keelson_tests::images::busybox_layer(dir)?;
    let (shell, pause) = (shell.finish()?, pause_layer(dir)?);

    let web = json!({"Entrypoint": ["/agnhost"], "Cmd": ["test-webserver"]});
    let mut archive = Archive::default();
    for name in named().await? {
        let config_and_layers: (serde_json::Value, Vec<&Layer>) = match short(&name) {
            "agnhost" => (json!({"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}), vec![&rootfs, &agnhost]),
            "busybox" => (json!({"Cmd": ["sh"]}), vec![&busybox, &shell]),
            "glibc-dns-testing" => (json!({"Cmd": ["bash"]}), vec![&rootfs]),
            "kitten" => (web.clone(), vec![&rootfs, &agnhost, &kitten]),
            "nautilus" => (web.clone(), vec![&rootfs, &agnhost, &nautilus]),
            "nginx" | "nginx-new" => (json!({"Cmd": ["nginx", "-g", "daemon off;"]}), vec![&rootfs]),
            "nonroot" => (json!({"Cmd": ["sh"], "User": "1234"}), vec![&busybox, &shell]),
            "nonewprivs" => (json!({"Cmd": ["nnp"]}), vec![&busybox, &shell, &privileges]),
            "pause" => (json!({"Entrypoint": ["/pause"], "User": "65535:65535"}), vec![&pause]),
            "perl" => (json!({"Cmd": ["perl", "-de0"]}), vec![&rootfs]),
            _ => continue,
        };
        let (config, layers) = config_and_layers;
        archive.add(&name, &layers, config)?;
    }
    let path = dir.join("suite-images.tar");
    archive.write(&path)?;
    Ok(path)
}

/// The suite's program with the files that its tests find beside it: a certificate for localhost, a directory for uploads, and
/// a user who is in a group of the image's own.
fn agnhost(dir: &Path) -> Result<Layer> {
    let program = std::fs::read(tool("agnhost")?)?;
    let pair = Authority::new(dir)?.pair("localhost", "localhost", &[], &["localhost", "127.0.0.1"])?;
    let mut layer = LayerBuilder::new_in(dir)?;
    layer.file("agnhost", &program, 0o755)?.link("agnhost-2", "agnhost")?.directory("uploads", 0o755)?;
    layer.host_file("localhost.crt", &pair.cert, Some(0o644))?;
    layer.host_file("localhost.key", &pair.key, Some(0o644))?;
    layer.directory("usr/bin", 0o755)?.file("usr/bin/sh", &bash()?, 0o755)?;
    layer.file("etc/passwd", USERS.as_bytes(), 0o644)?.file("etc/group", GROUPS.as_bytes(), 0o644)?;
    Ok(layer.finish()?)
}

const USERS: &str = "root:x:0:0:root:/root:/bin/bash\n\
    user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n\
    nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUPS: &str = "root:x:0:\nuser-defined-in-image:x:1000:\n\
    group-defined-in-image:x:50000:user-defined-in-image\nnogroup:x:65534:\n";

/// What the two images of the update demo serve: the name of a picture. Nothing looks at the picture itself, but what the
/// image calls itself is read where it is mounted as a volume.
fn picture(dir: &Path, name: &str) -> Result<Layer> {
    let mut layer = LayerBuilder::new_in(dir)?;
    let image = json!({"image": format!("{name}.jpg")}).to_string();
    layer.file("data.json", image.as_bytes(), 0o644)?.file(&format!("{name}.jpg"), b"", 0o644)?;
    layer.directory("etc", 0o755)?.file("etc/os-release", b"NAME=\"Alpine Linux\"\n", 0o644)?;
    Ok(layer.finish()?)
}

/// The images that a test pulls although they are on the node: from a registry that stands for the one in their names.
pub async fn serve(dir: &Path, containerd: &Containerd) -> Result<Registry> {
    const HOST: &str = "registry.k8s.io";
    let registry = Registry::start(dir).await?;
    for name in named().await?.iter().filter(|name| short(name) == "kitten") {
        let path = name.strip_prefix(&format!("{HOST}/")).unwrap_or(name);
        registry.push(containerd, name, path).await?;
    }
    containerd.redirect_registry(HOST, registry.host())?;
    Ok(registry)
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
