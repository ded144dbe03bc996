//! A credential provider plugin, and what becomes of pods when it does not do its work.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::pods::{pod, sleeper};
use keelson_tests::registry::{PASSWORD, USER};
use keelson_tests::suite::{Suite, folder};
use keelson_tests::wait::until_true;
use serde_json::json;

use super::{LIMIT, World, credentials_of};

/// A plugin of the shell. It notes every question, and what it does with it depends on the image.
pub struct Plugins {
    dir: PathBuf,
}

impl Plugins {
    pub fn prepare(dir: &Path, registry: &str) -> Result<Self> {
        let dir = folder(dir, "plugins")?;
        let answer = json!({
            "kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "cacheKeyType": "Image", "auth": {registry: {"username": USER, "password": PASSWORD}},
        });
        let lines = [
            "#!/bin/sh",
            "question=$(cat)",
            "echo \"$question\" >>\"$NOTES/questions\"",
            "case \"$question\" in",
            "*plugin/hangs*) sleep 3600 & echo $! >\"$NOTES/hangs\"; wait ;;",
            "*plugin/rubbish*) echo 'Login Succeeded' ;;",
            "*plugin/floods*) exec cat /dev/zero ;;",
            "*plugin/fails*) echo 'no such role' >&2; exit 1 ;;",
            &format!("*) echo '{answer}' ;;"),
            "esac",
            "",
        ];
        let program = dir.join("plugin");
        fs::write(&program, lines.join("\n"))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
            "providers": [{
                "name": "plugin", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                "matchImages": [format!("{registry}/plugin")], "defaultCacheDuration": "1h",
                "env": [{"name": "NOTES", "value": dir}],
            }],
        });
        fs::write(dir.join("config.json"), config.to_string())?;
        Ok(Self { dir })
    }

    pub fn flags(&self) -> Vec<String> {
        let dir = self.dir.display();
        vec![
            format!("--image-credential-provider-config={dir}/config.json"),
            format!("--image-credential-provider-bin-dir={dir}"),
        ]
    }

    /// How often it was asked about an image.
    fn asked(&self, image: &str) -> usize {
        let questions = fs::read_to_string(self.dir.join("questions")).unwrap_or_default();
        questions.lines().filter(|line| line.contains(image)).count()
    }

    /// The child of the plugin that hangs.
    fn hanging(&self) -> Result<Option<u32>> {
        let text = fs::read_to_string(self.dir.join("hangs")).unwrap_or_default();
        if text.trim().is_empty() {
            return Ok(None);
        }
        Ok(Some(text.trim().parse().context("the plugin notes its child")?))
    }
}

pub async fn run(suite: &mut Suite, world: &World, node: &mut Node, plugins: &Plugins) {
    let case = "a plugin's credentials are used, kept, and good for every pod";
    suite.case(case, LIMIT * 2, used_and_kept(world, node, plugins)).await;
    world.cluster.reset(suite, node).await;
    let case = "a plugin that answers rubbish, without end or not at all holds up its own pod, which says so";
    suite.case(case, LIMIT * 4, failing(world, node, plugins)).await;
    world.cluster.reset(suite, node).await;
}

async fn used_and_kept(world: &World, node: &Node, plugins: &Plugins) -> Result<()> {
    for name in ["first", "second"] {
        world.create(node, name, "plugin/app:1", "Always", None).await?;
        world.runs(name).await?;
        ensure!(world.was_pulled(name).await?);
    }
    let asked = plugins.asked("plugin/app");
    ensure!(asked == 1, "the plugin was run {asked} times");
    let record = credentials_of(node, &world.registry.name("plugin/app"))?;
    ensure!(record == json!({"nodePodsAccessible": true}), "the record says {record}");
    world.delete(&["first", "second"]).await
}

async fn failing(world: &World, node: &Node, plugins: &Plugins) -> Result<()> {
    world.create(node, "hangs", "plugin/hangs:1", "IfNotPresent", None).await?;
    until_true("the plugin hangs", LIMIT, async || Ok(plugins.hanging()?.is_some())).await?;
    for (name, words) in [
        ("rubbish", "its answer is not JSON"),
        ("floods", "answered with more than 1048576 bytes, and was killed"),
        ("fails", "failed with exit status: 1: no such role"),
    ] {
        world.create(node, name, &format!("plugin/{name}:1"), "IfNotPresent", None).await?;
        world.wait_event(name, "FailedToRetrieveImagePullCredentials", words).await?;
        world.wait_event(name, "Failed", &format!("(credential provider plugin: {words}")).await?;
        world.is_refused(name).await?;
    }
    others_go_on(&world.cluster, node).await?;
    let child = plugins.hanging()?.context("it hangs no more")?;
    let there = || Path::new(&format!("/proc/{child}")).exists();
    ensure!(there(), "the plugin was ended before anybody gave up");
    // Nobody waits for its answer any more.
    world.delete(&["hangs"]).await?;
    until_true("the plugin's child is gone too", LIMIT, async || Ok(!there())).await?;
    world.delete(&["rubbish", "floods", "fails"]).await
}

async fn others_go_on(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    pods.create(pod("bystander", node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready("bystander", LIMIT).await?;
    pods.delete("bystander", LIMIT).await
}
