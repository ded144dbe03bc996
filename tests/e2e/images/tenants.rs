//! One image, several tenants.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Result, ensure};
use keelson_tests::cluster::Node;
use keelson_tests::wait::until_true;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{LIMIT, World, credentials_of, pulled_dir};

pub async fn private(world: &World, node: &Node) -> Result<()> {
    world.create(node, "owner", "team/app:1", "IfNotPresent", Some("own")).await?;
    world.runs("owner").await?;
    ensure!(world.was_pulled("owner").await?, "nobody had it before");

    world.create(node, "stranger", "team/app:1", "IfNotPresent", None).await?;
    world.is_refused("stranger").await?;
    world.create(node, "sly", "team/app:1", "Never", None).await?;
    world.pods().wait_waiting("sly", "ErrImageNeverPull", LIMIT).await?;

    world.create(node, "again", "team/app:1", "Never", Some("own")).await?;
    world.create(node, "friend", "team/app:1", "IfNotPresent", Some("twin")).await?;
    for name in ["again", "friend"] {
        world.runs(name).await?;
        ensure!(!world.was_pulled(name).await?, "it was pulled for {name} again");
    }
    let record = credentials_of(node, &world.registry.name("team/app"))?;
    let secrets = record["kubernetesSecrets"].as_array().cloned().unwrap_or_default();
    let names: Vec<_> = secrets.iter().map(|s| s["name"].as_str().unwrap_or_default()).collect();
    ensure!(names == ["own", "twin"], "the record says {record}");
    ensure!(secrets[0]["credentialHash"] == secrets[1]["credentialHash"], "the record says {record}");
    world.delete(&["sly", "again", "friend"]).await
}

pub async fn over_crashes(world: &World, node: &mut Node) -> Result<()> {
    node.agent.kill()?;
    // As if a pull of it had been under way: it is not known whose it is then.
    let pulling = node.agent.root_dir().join("image_manager/pulling");
    let image = world.registry.name("team/app:1");
    let sha256: String = Sha256::digest(&image).iter().map(|b| format!("{b:02x}")).collect();
    let intent = json!({
        "kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1beta1", "image": image,
    });
    let file = pulling.join(format!("sha256-{sha256}"));
    fs::write(&file, intent.to_string())?;
    node.agent.restart().await?;
    until_true("the earlier pull is settled", LIMIT, async || Ok(!file.try_exists()?)).await?;
    world.create(node, "later", "team/app:1", "IfNotPresent", Some("own")).await?;
    world.runs("later").await?;
    ensure!(!world.was_pulled("later").await?, "the record was lost");
    world.create(node, "thief", "team/app:1", "IfNotPresent", None).await?;
    world.is_refused("thief").await?;

    // Without a record that can be read nobody is believed, and with a pull it is whole again.
    node.agent.kill()?;
    let before = records(node)?;
    for name in before.keys() {
        fs::write(pulled_dir(node).join(name), "{")?;
    }
    node.agent.restart().await?;
    world.create(node, "proof", "team/app:1", "IfNotPresent", Some("own")).await?;
    world.runs("proof").await?;
    ensure!(world.was_pulled("proof").await?, "a damaged record was believed");
    world.delete(&["later", "thief", "proof"]).await
}

fn records(node: &Node) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(pulled_dir(node))? {
        let entry = entry?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path())?);
    }
    Ok(found)
}

/// With a kubelet in charge.
pub async fn with_a_kubelet(world: &World, node: &Node) -> Result<()> {
    world.cluster.wait_node_ready(node.agent.node(), true, LIMIT).await?;
    let before = records(node)?;
    world.create(node, "later", "team/app:1", "IfNotPresent", Some("own")).await?;
    world.create(node, "thief", "team/app:1", "IfNotPresent", None).await?;
    world.runs("later").await?;
    ensure!(!world.was_pulled("later").await?, "the kubelet does not know that it was pulled with this");
    world.is_refused("thief").await?;
    ensure!(
        records(node)? == before,
        "the kubelet writes other records: {:?} and {before:?}",
        records(node)?
    );
    world.create(node, "kept", "team/kept:1", "IfNotPresent", Some("own")).await?;
    world.runs("kept").await?;
    world.delete(&["later", "thief", "kept"]).await
}

/// What the kubelet has pulled.
pub async fn after_a_kubelet(world: &World, node: &Node) -> Result<()> {
    world.cluster.wait_node_ready(node.agent.node(), true, LIMIT).await?;
    let before = records(node)?;
    world.create(node, "later", "team/kept:1", "IfNotPresent", Some("own")).await?;
    world.create(node, "thief", "team/kept:1", "IfNotPresent", None).await?;
    world.runs("later").await?;
    ensure!(!world.was_pulled("later").await?, "what the kubelet wrote is not understood");
    world.is_refused("thief").await?;
    ensure!(
        records(node)? == before,
        "we write other records than the kubelet: {:?} and {before:?}",
        records(node)?
    );
    world.delete(&["later", "thief"]).await
}
