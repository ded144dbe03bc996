//! Images as volumes: pulled as containers' images are, and mounted by the runtime.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::images::{BUSYBOX, PUBLISHED};
use keelson_tests::leftovers;
use keelson_tests::pods::{pod, sleeper, waiting_reasons};
use keelson_tests::registry::{PASSWORD, Registry, USER};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::{Value, json};

use super::super::{LIMIT, exec};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    let case = "an image is a volume that cannot be written, for each container that mounts it";
    suite.case(case, LIMIT * 2, mounted(cluster, node)).await;
    cluster.reset(suite, node).await;
    let case =
        "an image that a volume cannot have is the waiting reason of who mounts it, and of nobody else";
    suite.case(case, LIMIT * 2, absent(cluster, node)).await;
    cluster.reset(suite, node).await;
    let case = "a part of an image is refused by a runtime that would mount all of it";
    suite.case(case, LIMIT * 2, sub_path(cluster, node)).await;
    cluster.reset(suite, node).await;
}

pub async fn run_with_registry(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    let dir = suite.dir().to_owned();
    let case = "a volume's image is pulled with the pod's secrets, and backed off from without";
    suite.case(case, LIMIT * 3, private(cluster, node, &dir)).await;
    cluster.reset(suite, node).await;
}

fn with_image(name: &str, node: &Node, containers: Value, reference: &str, policy: &str) -> Value {
    let mut made = pod(name, node.agent.node(), containers);
    made["spec"]["volumes"] =
        json!([{"name": "tools", "image": {"reference": reference, "pullPolicy": policy}}]);
    made
}

fn mounting(name: &str, mount: Value) -> Value {
    let mut container = sleeper(name);
    container["volumeMounts"] = json!([mount]);
    container
}

async fn mounted(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    let whole = |name: &str| mounting(name, json!({"name": "tools", "mountPath": "/tools"}));
    pods.create(with_image("whole", node, json!([whole("a"), whole("b")]), BUSYBOX, "IfNotPresent")).await?;
    let ready = pods.wait_ready("whole", LIMIT).await?;
    for container in ["a", "b"] {
        let users = exec(node, "whole", container, "cat /tools/etc/passwd").await?;
        ensure!(users.contains("nobody"), "{container} sees {users:?}");
        let written = exec(node, "whole", container, "touch /tools/new").await;
        let refused = written.as_ref().is_err_and(|e| e.to_string().contains("Read-only file system"));
        ensure!(refused, "{container} could write: {written:?}");
    }
    let statuses = ready.status.and_then(|s| s.container_statuses).unwrap_or_default();
    let mounts = statuses.first().and_then(|c| c.volume_mounts.clone()).unwrap_or_default();
    ensure!(mounts.iter().any(|m| m.name == "tools" && m.mount_path == "/tools"), "status shows {mounts:?}");
    let events = pods.events_about("whole").await?;
    let told = events.iter().any(|e| {
        let of_pod = e.involved_object.field_path.as_deref().unwrap_or_default().is_empty();
        of_pod && e.reason.as_deref() == Some("Pulled")
    });
    ensure!(told, "no event of the pod tells of the volume's image");
    // Nothing of it lies in the pod's directory, and an agent that starts finds nothing to mount.
    node.agent.kill()?;
    node.agent.restart().await?;
    cluster.kubectl.run(&["annotate", "pod", "whole", "seen=again"]).await?;
    ensure!(exec(node, "whole", "a", "test -x /tools/bin/busybox && echo there").await? == "there\n");
    pods.delete("whole", LIMIT).await?;
    leftovers::wait_clean(node, LIMIT).await
}

async fn absent(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mount = json!({"name": "tools", "mountPath": "/tools"});
    let cases = [
        ("never", "example.invalid/nowhere:1", "Never", "ErrImageNeverPull"),
        ("bad-name", "NOT/A::name", "IfNotPresent", "InvalidImageName"),
        ("nowhere", "127.0.0.1:1/nowhere:1", "Always", "ImagePullBackOff"),
    ];
    for (name, image, policy, reason) in cases {
        let containers = json!([mounting("main", mount.clone()), sleeper("bystander")]);
        pods.create(with_image(name, node, containers, image, policy)).await?;
        let seen = pods.wait_waiting(name, reason, LIMIT).await?;
        let message = waiting_message(&seen, "main").context("main does not wait")?;
        ensure!(message.contains("volume \"tools\"") && message.contains(image), "{name}: {message:?}");
        let runs = pods.wait(name, "the other container runs", LIMIT, |pod| {
            waiting_reasons(pod).len() == 1 && waiting_message(pod, "bystander").is_none()
        });
        runs.await?;
        let text = node.agent.why_with(&[name]).await?;
        ensure!(text.contains(image), "why says nothing of {image}: {text}");
        pods.delete(name, LIMIT).await?;
    }
    Ok(())
}

fn waiting_message(pod: &Pod, container: &str) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let found = statuses.iter().find(|c| c.name == container)?;
    found.state.as_ref()?.waiting.as_ref()?.message.clone()
}

/// containerd 2.1 passes over the part that is asked for. A newer one mounts it, and then nothing outside of the image may show.
async fn sub_path(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let part = mounting("main", json!({"name": "tools", "mountPath": "/part", "subPath": "etc"}));
    pods.create(with_image("part", node, json!([part]), BUSYBOX, "IfNotPresent")).await?;
    let seen = pods.wait_waiting("part", "CreateContainerError", LIMIT).await?;
    let message = waiting_message(&seen, "main").context("main does not wait")?;
    ensure!(message.contains("subPath") && message.contains("containerd 2.2 or newer"), "{message:?}");
    pods.delete("part", LIMIT).await?;
    leftovers::wait_clean(node, LIMIT).await
}

async fn private(cluster: &Cluster, node: &Node, dir: &std::path::Path) -> Result<()> {
    let dir = dir.join("volume-images");
    fs::create_dir_all(&dir)?;
    let registry = Registry::start_private(&dir).await?;
    node.containerd.trust_registry(registry.host())?;
    let image = registry.push(&node.containerd, PUBLISHED, "tools:1").await?;
    let (user, password) = (format!("--docker-username={USER}"), format!("--docker-password={PASSWORD}"));
    let server = format!("--docker-server={}", registry.host());
    let kubectl = &cluster.kubectl;
    kubectl.run(&["create", "secret", "docker-registry", "tools", &server, &user, &password]).await?;
    let pods = cluster.pods();
    let containers = json!([mounting("main", json!({"name": "tools", "mountPath": "/tools"}))]);
    pods.create(with_image("stranger", node, containers.clone(), &image, "Always")).await?;
    pods.wait_waiting("stranger", "ImagePullBackOff", LIMIT).await?;
    let mut known = with_image("known", node, containers, &image, "Always");
    known["spec"]["imagePullSecrets"] = json!([{"name": "tools"}]);
    pods.create(known).await?;
    pods.wait_ready("known", LIMIT).await?;
    ensure!(exec(node, "known", "main", "test -x /tools/bin/sh && echo there").await? == "there\n");
    until_true("the pull has its events", LIMIT, async || {
        let reasons = pods.event_reasons("known").await?;
        Ok(["Pulling", "Pulled"].iter().all(|wanted| reasons.iter().any(|r| r == wanted)))
    })
    .await?;
    for name in ["stranger", "known"] {
        pods.delete(name, LIMIT).await?;
    }
    kubectl.run(&["delete", "secret", "tools"]).await?;
    leftovers::wait_clean(node, LIMIT).await
}
