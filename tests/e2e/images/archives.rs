//! A node without a registry: images come as archives into a directory.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::Node;
use keelson_tests::images::{Archive, Layer, busybox_layer};
use keelson_tests::pods::{Pods, SLEEP, pod};
use keelson_tests::suite::folder;
use keelson_tests::wait::until_true;
use serde_json::json;

use super::{LIMIT, World};

pub async fn brought_in(world: &World, node: &mut Node, dir: &Path) -> Result<()> {
    let scratch = folder(dir, "scratch")?;
    let layer = busybox_layer(&scratch)?;
    let pods = world.pods();
    // There before the agent is.
    node.agent.stop().await?;
    pack(&scratch, &layer, "first")?;
    fs::create_dir_all(dir.join("images"))?;
    let place = |name: &str| dir.join("images").join(name);
    fs::rename(scratch.join("first.tar"), place("first.tar"))?;
    pack(&scratch, &layer, "cut")?;
    let whole = fs::read(scratch.join("cut.tar"))?;
    fs::write(place("cut.tar"), &whole[..whole.len() / 2])?;
    fs::write(place("dots.tar"), with_dots(&fs::read(place("first.tar"))?)?)?;
    fs::write(place("rubbish.tar"), "no archive")?;
    node.agent.restart().await?;
    runs(&pods, node, "first").await?;
    for (file, words) in
        [("cut.tar", "it is cut off"), ("dots.tar", "which leads out of it"), ("rubbish.tar", "error=")]
    {
        until_true(&format!("{file} is refused"), LIMIT, async || {
            let log = node.agent.log();
            let about = |line: &&str| line.contains("image archive refused") && line.contains(file);
            Ok(log.lines().find(about).is_some_and(|line| line.contains(words)))
        })
        .await?;
    }

    // One that is being written is nobody's business until it is closed.
    pack(&scratch, &layer, "second")?;
    let bytes = fs::read(scratch.join("second.tar"))?;
    let mut writing = File::create(place("second.tar"))?;
    writing.write_all(&bytes[..bytes.len() / 2])?;
    pack(&scratch, &layer, "third")?;
    fs::rename(scratch.join("third.tar"), place("third.tar"))?;
    runs(&pods, node, "third").await?;
    let line = node.agent.log().lines().find(|line| line.contains("second.tar")).map(str::to_owned);
    ensure!(line.is_none(), "half of an archive was read: {line:?}");
    writing.write_all(&bytes[bytes.len() / 2..])?;
    drop(writing);
    runs(&pods, node, "second").await?;
    fs::write(place("cut.tar"), whole)?;
    runs(&pods, node, "cut").await?;

    let listed = node.containerd.ctr(&["-n", "k8s.io", "images", "ls"]).await?;
    for name in ["first", "second", "third", "cut"] {
        let line = listed.lines().find(|line| line.contains(&image(name))).context("it is gone")?;
        ensure!(line.contains("io.cri-containerd.pinned=pinned"), "it may be collected: {line}");
    }
    let leases = node.containerd.ctr(&["-n", "k8s.io", "leases", "ls"]).await?;
    ensure!(!leases.contains("keelson"), "a lease is left: {leases}");
    for name in ["first", "second", "third", "cut"] {
        pods.delete(name, LIMIT).await?;
    }
    // Who removes one has it back from the archive, when the agent starts again.
    node.containerd.ctr(&["-n", "k8s.io", "images", "rm", "--sync", &image("first")]).await?;
    node.agent.kill()?;
    node.agent.restart().await?;
    runs(&pods, node, "first").await?;
    pods.delete("first", LIMIT).await
}

fn image(name: &str) -> String {
    format!("registry.example/flown-in/{name}:1")
}

fn pack(dir: &Path, layer: &Layer, name: &str) -> Result<()> {
    let mut archive = Archive::default();
    archive.add(&image(name), &[layer], json!({"Cmd": ["sh"], "Labels": {"name": name}}))?;
    archive.write(&dir.join(format!("{name}.tar")))
}

/// The same archive with one more file, whose name leads out of it.
fn with_dots(archive: &[u8]) -> Result<Vec<u8>> {
    let mut header = tar::Header::new_gnu();
    let name = b"../../outside";
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.set_size(0);
    header.set_cksum();
    Ok([header.as_bytes(), archive].concat())
}

/// A pod whose image nobody may pull.
async fn runs(pods: &Pods, node: &Node, name: &str) -> Result<()> {
    let container = json!({
        "name": "main", "image": image(name), "imagePullPolicy": "Never", "command": ["sh", "-c", SLEEP],
    });
    pods.create(pod(name, node.agent.node(), json!([container]))).await?;
    pods.wait_ready(name, LIMIT).await.map(drop)
}
