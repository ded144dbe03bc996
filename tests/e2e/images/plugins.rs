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

const AUDIENCE: &str = "registry.example";
const ANNOTATION: &str = "registry.example/role";

/// What lets a node ask for tokens of an audience that no volume of the pod has.
const MAY_ASK: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: registry-tokens}
rules:
- {verbs: [request-serviceaccounts-token-audience], apiGroups: [''], resources: [registry.example]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: registry-tokens}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: registry-tokens}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:nodes'}
";

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
            // Whoever has no token and no role gets nothing.
            &format!("*accounts/*serviceAccountToken???ey*{ANNOTATION}???reader*) echo '{answer}' ;;"),
            "*accounts/*) exit 1 ;;",
            &format!("*) echo '{answer}' ;;"),
            "esac",
            "",
        ];
        let program = dir.join("plugin");
        fs::write(&program, lines.join("\n"))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        std::os::unix::fs::symlink(&program, dir.join("accounts"))?;
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
            "providers": [{
                "name": "accounts", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                "matchImages": [format!("{registry}/accounts")], "defaultCacheDuration": "1h",
                "env": [{"name": "NOTES", "value": dir}],
                "tokenAttributes": {
                    "serviceAccountTokenAudience": AUDIENCE, "cacheType": "ServiceAccount",
                    "requireServiceAccount": true, "requiredServiceAccountAnnotationKeys": [ANNOTATION],
                },
            }, {
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
    let case =
        "what a plugin gave for a service account is for that account, and for none without its annotation";
    suite.case(case, LIMIT * 3, of_accounts(world, node, plugins)).await;
    world.cluster.reset(suite, node).await;
    let case = "a plugin that answers rubbish, without end or not at all holds up its own pod, which says so";
    suite.case(case, LIMIT * 4, failing(world, node, plugins)).await;
    world.cluster.reset(suite, node).await;
}

async fn used_and_kept(world: &World, node: &Node, plugins: &Plugins) -> Result<()> {
    for name in ["asks", "shares"] {
        world.create(node, name, "plugin/app:1", "Always", None).await?;
        world.runs(name).await?;
        ensure!(world.was_pulled(name).await?);
    }
    let asked = plugins.asked("plugin/app");
    ensure!(asked == 1, "the plugin was run {asked} times");
    let record = credentials_of(node, &world.registry.name("plugin/app"))?;
    ensure!(record == json!({"nodePodsAccessible": true}), "the record says {record}");
    world.delete(&["asks", "shares"]).await
}

async fn of_accounts(world: &World, node: &Node, plugins: &Plugins) -> Result<()> {
    let kubectl = &world.cluster.kubectl;
    kubectl.apply(MAY_ASK).await?;
    for name in ["reader", "plain"] {
        kubectl.run(&["create", "serviceaccount", name]).await?;
    }
    kubectl.run(&["annotate", "serviceaccount", "reader", &format!("{ANNOTATION}=reader")]).await?;
    let image = world.registry.name("accounts/app:1");
    for (name, account) in [("reading", "reader"), ("rereading", "reader"), ("other", "plain")] {
        let mut container = sleeper("main");
        container["image"] = json!(image);
        let mut wanted = pod(name, node.agent.node(), json!([container]));
        wanted["spec"]["serviceAccountName"] = json!(account);
        world.pods().create(wanted).await?;
        if account == "reader" {
            world.runs(name).await?;
        }
    }
    ensure!(!world.was_pulled("rereading").await?, "it was pulled for the same account again");
    world.is_refused("other").await?;
    let asked = plugins.asked("accounts/app");
    ensure!(asked == 1, "the plugin was run {asked} times");
    let record = credentials_of(node, &world.registry.name("accounts/app"))?;
    let account = &record["kubernetesServiceAccounts"][0];
    let known = (account["namespace"].as_str(), account["name"].as_str());
    ensure!(known == (Some("default"), Some("reader")), "the record says {record}");
    ensure!(record.get("kubernetesSecrets").is_none() && record.get("nodePodsAccessible").is_none());
    world.delete(&["reading", "rereading", "other"]).await
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
