//! Whose images they are: private ones stay private on a node that has them, over crashes and with a kubelet in between; and
//! where credentials come from: secrets, the node's own file, plugins.

mod archives;
mod plugins;
mod tenants;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::agent::Agent;
use keelson_tests::built;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::{Containerd, Kind};
use keelson_tests::control_plane::Extent;
use keelson_tests::images::{PUBLISHED, PUBLISHED_LAST, PUBLISHED_NEXT};
use keelson_tests::parts::Part;
use keelson_tests::pods::{Pods, SLEEP, pod};
use keelson_tests::registry::{self, PASSWORD, Registry, USER};
use keelson_tests::runtime::Runtime;
use keelson_tests::suite::{Suite, folder};
use keelson_tests::wait::until_true;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

pub async fn body(suite: &mut Suite) -> Result<()> {
    if let Err(missing) = keelson_require::program(registry::PROGRAM) {
        suite.leave_out("images from a private registry", &missing);
        return Ok(());
    }
    let cluster = Cluster::start(suite.dir(), Extent::WithoutScheduler).await?;
    let registry = Registry::start_private(suite.dir()).await?;
    let dir = folder(suite.dir(), "node-1")?;
    let plugins = plugins::Plugins::prepare(&dir, registry.host())?;
    let containerd = Containerd::start(Kind::V2, &dir, 1).await?;
    containerd.trust_registry(registry.host())?;
    // A kubelet that collects images forgets whose those are that are in use, and how full the disk is is not the test's to say.
    let config = json!({"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99});
    let mut options = cluster.options("node", &containerd, config)?;
    options.flags = plugins.flags();
    let archives = folder(&dir, "archives")?;
    options.flags.push(format!("--image-dir={}", archives.join("images").display()));
    let agent = Agent::start(&dir, options).await?;
    let runtime = Runtime::connect(&containerd.socket()).await?;
    let mut node = Node { agent, runtime, containerd };
    cluster.wait_node_ready("node", true, LIMIT).await?;
    for (from, image) in
        [(PUBLISHED, "team/app:1"), (PUBLISHED_NEXT, "team/kept:1"), (PUBLISHED_LAST, "node/app:1")]
    {
        registry.push(&node.containerd, from, image).await?;
    }
    for image in ["plugin/app:1", "accounts/app:1"] {
        registry.push(&node.containerd, PUBLISHED_LAST, image).await?;
    }
    for name in ["own", "twin"] {
        secret(&cluster, &registry, name).await?;
    }
    let world = World { cluster, registry };

    let case = "a private image is there for those who have what it was pulled with, and for nobody else";
    suite.case(case, LIMIT * 3, tenants::private(&world, &node)).await;
    let case = "so it stays when the agent is killed, in the midst of a pull too";
    suite.case(case, LIMIT * 3, tenants::over_crashes(&world, &mut node)).await;
    match Part::Kubelet.program() {
        Ok(kubelet) => {
            let case = "a kubelet goes by our records and we by its own";
            let took_over = async {
                node.agent.stop().await?;
                node.agent.hand_over(&kubelet).await?;
                let done = tenants::with_a_kubelet(&world, &node).await;
                node.agent.stop().await?;
                node.agent.hand_over(&built::agent()?).await?;
                done?;
                tenants::after_a_kubelet(&world, &node).await
            };
            suite.case(case, LIMIT * 4, took_over).await;
        }
        Err(e) => suite.fail("a kubelet takes over", &e),
    }
    world.cluster.reset(suite, &mut node).await;
    let case = "the node's own credentials are for every pod, and read again when their file changes";
    suite.case(case, LIMIT * 3, of_the_node(&world, &node)).await;
    world.cluster.reset(suite, &mut node).await;
    plugins::run(suite, &world, &mut node, &plugins).await;
    let case = "images come as archives, at the start and later, and bad ones are named and hold up nothing";
    suite.case(case, LIMIT * 4, archives::brought_in(&world, &mut node, &archives)).await;
    world.cluster.reset(suite, &mut node).await;
    node.agent.check_alive()
}

struct World {
    cluster: Cluster,
    registry: Registry,
}

impl World {
    fn pods(&self) -> Pods {
        self.cluster.pods()
    }

    /// Makes a pod that runs an image of the private registry.
    async fn create(
        &self,
        node: &Node,
        name: &str,
        image: &str,
        policy: &str,
        secret: Option<&str>,
    ) -> Result<()> {
        let image = self.registry.name(image);
        let container = json!({
            "name": "main", "image": image, "imagePullPolicy": policy, "command": ["sh", "-c", SLEEP],
        });
        let mut wanted = pod(name, node.agent.node(), json!([container]));
        if let Some(secret) = secret {
            wanted["spec"]["imagePullSecrets"] = json!([{"name": secret}]);
        }
        self.pods().create(wanted).await?;
        Ok(())
    }

    async fn runs(&self, name: &str) -> Result<()> {
        self.pods().wait_ready(name, LIMIT).await.map(drop)
    }

    async fn is_refused(&self, name: &str) -> Result<()> {
        self.pods().wait_waiting(name, "ImagePullBackOff", LIMIT).await.map(drop)
    }

    async fn delete(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.pods().delete(name, LIMIT).await?;
        }
        Ok(())
    }

    /// Whether the pod's image was pulled for it. To be asked once it runs.
    async fn was_pulled(&self, name: &str) -> Result<bool> {
        let said = |reasons: &[String], reason: &str| reasons.iter().any(|r| r == reason);
        let mut pulled = false;
        until_true("an event says where the image is from", LIMIT, async || {
            let reasons = self.pods().event_reasons(name).await?;
            pulled = said(&reasons, "Pulling");
            Ok(said(&reasons, "Pulled"))
        })
        .await?;
        Ok(pulled)
    }

    async fn wait_event(&self, name: &str, reason: &str, words: &str) -> Result<()> {
        until_true(&format!("{name} has an event {reason} with {words:?}"), LIMIT, async || {
            let events = self.pods().events_about(name).await?;
            let about = |m: &String| m.contains(words);
            Ok(events
                .iter()
                .any(|e| e.reason.as_deref() == Some(reason) && e.message.as_ref().is_some_and(about)))
        })
        .await
    }
}

async fn secret(cluster: &Cluster, registry: &Registry, name: &str) -> Result<()> {
    let (user, password) = (format!("--docker-username={USER}"), format!("--docker-password={PASSWORD}"));
    let server = format!("--docker-server={}", registry.host());
    cluster.kubectl.run(&["create", "secret", "docker-registry", name, &server, &user, &password]).await?;
    Ok(())
}

fn pulled_dir(node: &Node) -> PathBuf {
    node.agent.root_dir().join("image_manager/pulled")
}

/// All records of pulled images, by the images' names in pods.
fn credentials_of(node: &Node, name: &str) -> Result<Value> {
    for entry in fs::read_dir(pulled_dir(node))? {
        let record: Value = serde_json::from_str(&fs::read_to_string(entry?.path())?)?;
        if let Some(found) = record["credentialMapping"].get(name) {
            return Ok(found.clone());
        }
    }
    anyhow::bail!("there is no record of {name}")
}

async fn of_the_node(world: &World, node: &Node) -> Result<()> {
    let file = node.agent.root_dir().join("config.json");
    let write = |text: String| {
        let half = file.with_extension("half");
        fs::write(&half, text)?;
        fs::rename(&half, &file).context("cannot write the node's credentials")
    };
    write("{\"auths\": {".into())?;
    world.create(node, "first", "node/app:1", "IfNotPresent", None).await?;
    world.is_refused("first").await?;
    ensure!(node.agent.log().contains("the node's credentials for registries cannot be read"));
    let login = json!({"username": USER, "password": PASSWORD});
    write(json!({"auths": {world.registry.host(): login}}).to_string())?;
    world.runs("first").await?;
    let record = credentials_of(node, &world.registry.name("node/app"))?;
    ensure!(record == json!({"nodePodsAccessible": true}), "the record says {record}");
    // Whoever comes later needs no registry any more.
    fs::remove_file(&file)?;
    world.create(node, "second", "node/app:1", "IfNotPresent", None).await?;
    world.runs("second").await?;
    ensure!(!world.was_pulled("second").await?, "it was pulled again");
    world.delete(&["first", "second"]).await
}
