//! Where images come from, and what happens when they do not come.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::images::{BUSYBOX_NEXT, PUBLISHED, PUBLISHED_NEXT};
use keelson_tests::pods::{Pods, SLEEP, is_ready, pod, restarts, sleeper, waiting_reasons};
use keelson_tests::registry::{PASSWORD, Registry, USER};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::{Value, json};

use super::LIMIT;

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node, registry: &Registry) {
    let dir = suite.dir().to_owned();
    suite
        .case(
            "an image of Docker Hub is pulled with the credentials of its former name",
            LIMIT * 2,
            private_hub(cluster, node, &dir),
        )
        .await;
    cluster.reset(suite, node).await;
    suite.case("an image is pulled from a registry", LIMIT * 2, pulled(cluster, node, registry)).await;
    cluster.reset(suite, node).await;
    suite
        .case(
            "Always asks the registry each time, IfNotPresent does not",
            LIMIT * 2,
            policies(cluster, node, registry),
        )
        .await;
    cluster.reset(suite, node).await;
    suite.case("Never fails without asking", LIMIT * 2, never(cluster, node, registry)).await;
    cluster.reset(suite, node).await;
    let case =
        "an image that is not there is backed off from, others are untouched, and it starts when it comes";
    suite.case(case, LIMIT * 2, appears_later(cluster, node, registry)).await;
    cluster.reset(suite, node).await;
    suite.case("a name that is no name is said to be none", LIMIT * 2, bad_name(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("a changed image restarts that one container", LIMIT * 2, changed(cluster, node)).await;
    cluster.reset(suite, node).await;
}

fn with_image(name: &str, image: &str, policy: &str) -> Value {
    json!({"name": name, "image": image, "imagePullPolicy": policy, "command": ["sh", "-c", SLEEP]})
}

/// A registry of the rig stands for Docker Hub.
async fn private_hub(cluster: &Cluster, node: &Node, dir: &Path) -> Result<()> {
    let hub = Registry::start_private(dir).await?;
    hub.push(&node.containerd, PUBLISHED, "org/private:1").await?;
    let (user, password) = (format!("--docker-username={USER}"), format!("--docker-password={PASSWORD}"));
    let server = "--docker-server=https://index.docker.io/v1/";
    let kubectl = &cluster.kubectl;
    kubectl.run(&["create", "secret", "docker-registry", "hub", server, &user, &password]).await?;
    node.containerd.redirect_registry("docker.io", hub.host())?;
    let pulled = pulled_from_hub(cluster, node).await;
    node.containerd.forget_registry("docker.io")?;
    kubectl.run(&["delete", "secret", "hub"]).await?;
    pulled
}

async fn pulled_from_hub(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    for image in ["docker.io/org/private:1", "org/private:1"] {
        let spec = json!([with_image("main", image, "Always")]);
        pods.create(pod("stranger", node.agent.node(), spec.clone())).await?;
        pods.wait_waiting("stranger", "ImagePullBackOff", LIMIT).await?;
        let mut known = pod("known", node.agent.node(), spec);
        known["spec"]["imagePullSecrets"] = json!([{"name": "hub"}, {"name": "absent"}]);
        pods.create(known).await?;
        pods.wait_ready("known", LIMIT).await?;
        has_events(&pods, "known", &["Pulled", "FailedToRetrieveImagePullSecret"]).await?;
        pods.delete("stranger", LIMIT).await?;
        pods.delete("known", LIMIT).await?;
    }
    Ok(())
}

async fn has_events(pods: &Pods, name: &str, wanted: &[&str]) -> Result<()> {
    until_true(&format!("the events {wanted:?} of {name}"), LIMIT, async || {
        let reasons = pods.event_reasons(name).await?;
        Ok(wanted.iter().all(|wanted| reasons.iter().any(|r| r == wanted)))
    })
    .await
}

async fn pulled(cluster: &Cluster, node: &Node, registry: &Registry) -> Result<()> {
    let image = registry.push(&node.containerd, PUBLISHED, "pulled:1").await?;
    let pods = cluster.pods();
    pods.create(pod("pulled", node.agent.node(), json!([with_image("main", &image, "IfNotPresent")])))
        .await?;
    let ready = pods.wait_ready("pulled", LIMIT).await?;
    let status = ready.status.and_then(|s| s.container_statuses).unwrap_or_default();
    ensure!(
        status[0].image == image && status[0].image_id.contains("sha256:"),
        "status says {:?}",
        status[0]
    );
    has_events(&pods, "pulled", &["Pulling", "Pulled"]).await?;
    pods.delete("pulled", LIMIT).await
}

async fn policies(cluster: &Cluster, node: &Node, registry: &Registry) -> Result<()> {
    let pods = cluster.pods();
    let image = registry.push(&node.containerd, PUBLISHED, "moving:1").await?;
    pods.create(pod("first", node.agent.node(), json!([with_image("main", &image, "IfNotPresent")]))).await?;
    let first = image_id(&pods.wait_ready("first", LIMIT).await?);
    // The same name now means another image. Pushing it forgets the local name, which is put back as a pull would have.
    registry.push(&node.containerd, PUBLISHED_NEXT, "moving:1").await?;
    node.containerd.ctr(&["-n", "k8s.io", "images", "tag", "--force", PUBLISHED, &image]).await?;
    for (name, policy) in [("lazy", "IfNotPresent"), ("eager", "Always")] {
        pods.create(pod(name, node.agent.node(), json!([with_image("main", &image, policy)]))).await?;
    }
    let lazy = image_id(&pods.wait_ready("lazy", LIMIT).await?);
    let eager = image_id(&pods.wait_ready("eager", LIMIT).await?);
    ensure!(eager != first, "Always used the old image {first}");
    // The two start side by side, so the lazy one may see either; what it may not do is pull.
    ensure!(lazy == first || lazy == eager, "IfNotPresent found {lazy}");
    let reasons = pods.event_reasons("lazy").await?;
    ensure!(!reasons.iter().any(|r| r == "Pulling"), "IfNotPresent pulled: {reasons:?}");
    for name in ["first", "lazy", "eager"] {
        pods.delete(name, LIMIT).await?;
    }
    Ok(())
}

fn image_id(pod: &k8s_openapi::api::core::v1::Pod) -> String {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
    statuses.first().map(|c| c.image_id.clone()).unwrap_or_default()
}

async fn never(cluster: &Cluster, node: &Node, registry: &Registry) -> Result<()> {
    let pods = cluster.pods();
    let image = registry.name("absent:1");
    pods.create(pod("never", node.agent.node(), json!([with_image("main", &image, "Never")]))).await?;
    let waiting = pods.wait_waiting("never", "ErrImageNeverPull", LIMIT).await?;
    ensure!(!is_ready(&waiting));
    has_events(&pods, "never", &["ErrImageNeverPull", "Failed"]).await?;
    pods.delete("never", LIMIT).await
}

async fn appears_later(cluster: &Cluster, node: &Node, registry: &Registry) -> Result<()> {
    let pods = cluster.pods();
    let image = registry.name("later:1");
    pods.create(pod(
        "later",
        node.agent.node(),
        json!([with_image("main", &image, "IfNotPresent"), sleeper("side")]),
    ))
    .await?;
    pods.create(pod("bystander", node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready("bystander", LIMIT).await?;
    let seen = pods.wait("later", "an image error", LIMIT, |p| {
        waiting_reasons(p).iter().any(|r| r == "ErrImagePull" || r == "ImagePullBackOff")
    });
    let seen = seen.await?;
    let states = seen.status.and_then(|s| s.container_statuses).unwrap_or_default();
    let message = states
        .iter()
        .find(|c| c.name == "main")
        .and_then(|c| c.state.as_ref()?.waiting.as_ref()?.message.clone());
    ensure!(message.as_deref().is_some_and(|m| m.contains("later:1")), "the message is {message:?}");
    pods.wait_waiting("later", "ImagePullBackOff", LIMIT).await?;
    let side = pods.wait("later", "the other container runs", LIMIT, |p| {
        let states = p.status.as_ref().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
        states.iter().any(|c| c.name == "side" && c.state.as_ref().is_some_and(|s| s.running.is_some()))
    });
    side.await?;
    registry.push(&node.containerd, PUBLISHED, "later:1").await?;
    pods.wait_ready("later", LIMIT).await?;
    pods.delete("later", LIMIT).await?;
    pods.delete("bystander", LIMIT).await
}

async fn bad_name(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    pods.create(pod(
        "bad-name",
        node.agent.node(),
        json!([with_image("main", "NOT/A::name", "IfNotPresent")]),
    ))
    .await?;
    pods.wait_waiting("bad-name", "InvalidImageName", LIMIT).await?;
    has_events(&pods, "bad-name", &["InspectFailed", "Failed"]).await?;
    pods.delete("bad-name", LIMIT).await
}

async fn changed(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    pods.create(pod("changed", node.agent.node(), json!([sleeper("a"), sleeper("b")]))).await?;
    pods.wait_ready("changed", LIMIT).await?;
    let before = node.runtime.containers_of("changed").await?;
    cluster.kubectl.run(&["set", "image", "pod/changed", &format!("b={BUSYBOX_NEXT}")]).await?;
    let restarted =
        pods.wait("changed", "b was restarted", LIMIT, |p| is_ready(p) && restarts(p, "b") == 1).await?;
    // One image may have many names, of which the runtime reports any; its layers distinguish it from the other.
    let states = restarted.status.and_then(|s| s.container_statuses).unwrap_or_default();
    ensure!(states[0].image_id != states[1].image_id, "both run {}", states[0].image_id);
    let after = node.runtime.containers_of("changed").await?;
    let a = before.first().context("no container")?;
    ensure!(after.iter().any(|c| c.id == a.id && c.running), "a was restarted too");
    pods.delete("changed", LIMIT).await
}
