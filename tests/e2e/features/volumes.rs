//! Volumes and environment from every source, and what happens when the source is not there or changes.

mod env_files;
pub mod images;
mod ownership;
mod trust_bundles;

use std::time::Duration;

use anyhow::{Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::leftovers;
use keelson_tests::pods::{pod, shell, sleeper};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::json;

use super::{LIMIT, exec};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    suite.case("every pod gets a token that the apiserver takes", LIMIT * 2, token(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("environment from all its sources", LIMIT * 2, environment(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite
        .case(
            "files of configMap, secret and downward API follow their objects",
            LIMIT * 3,
            updates(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
    suite.case("a missing secret is waited for", LIMIT * 2, missing(cluster, node)).await;
    cluster.reset(suite, node).await;
    let case = "emptyDir is shared, stays as its pod has made it and goes, hostPath stays";
    suite.case(case, LIMIT * 2, directories(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("a volume that cannot be had is said to be so", LIMIT * 2, refused(cluster, node)).await;
    cluster.reset(suite, node).await;
    images::run(suite, cluster, node).await;
    env_files::run(suite, cluster, node).await;
    ownership::run(suite, cluster, node).await;
    trust_bundles::run(suite, cluster, node).await;
}

async fn token(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    pods.create(pod("token", node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready("token", LIMIT).await?;
    let dir = "/var/run/secrets/kubernetes.io/serviceaccount";
    let namespace = exec(node, "token", "main", &format!("cat {dir}/namespace")).await?;
    ensure!(namespace == "default", "the namespace is {namespace:?}");
    let ca = exec(node, "token", "main", &format!("cat {dir}/ca.crt")).await?;
    ensure!(ca.contains("BEGIN CERTIFICATE"), "ca.crt is {ca:?}");
    let token = exec(node, "token", "main", &format!("cat {dir}/token")).await?;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token.trim()}});
    let review: k8s_openapi::api::authentication::v1::TokenReview = serde_json::from_value(review)?;
    let reviews: kube::Api<k8s_openapi::api::authentication::v1::TokenReview> =
        kube::Api::all(cluster.client.clone());
    let answer = reviews.create(&kube::api::PostParams::default(), &review).await?.status.unwrap_or_default();
    ensure!(answer.authenticated == Some(true), "the token is refused: {answer:?}");
    let user = answer.user.and_then(|u| u.username).unwrap_or_default();
    ensure!(user == "system:serviceaccount:default:default", "the token is {user}'s");
    pods.delete("token", LIMIT).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn environment(cluster: &Cluster, node: &Node) -> Result<()> {
    cluster
        .kubectl
        .run(&["create", "configmap", "settings", "--from-literal=colour=blue", "--from-literal=size=9"])
        .await?;
    cluster.kubectl.run(&["create", "secret", "generic", "keys", "--from-literal=word=sesame"]).await?;
    let mut container = sleeper("main");
    container["resources"] = json!({"limits": {"memory": "64Mi", "cpu": "500m"}});
    container["env"] = json!([
        {"name": "PLAIN", "value": "a b"},
        {"name": "EXPANDED", "value": "$(PLAIN)-$(COLOUR)-$$(PLAIN)-$(NOWHERE)"},
        {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "colour"}}},
        {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "word"}}},
        {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "nowhere", "key": "x", "optional": true}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['tier']"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "LATER", "value": "$(COLOUR)"},
    ]);
    container["envFrom"] =
        json!([{"prefix": "S_", "configMapRef": {"name": "settings"}}, {"secretRef": {"name": "keys"}}]);
    let mut with_env = pod("env", node.agent.node(), json!([container]));
    with_env["metadata"]["labels"] = json!({"tier": "front"});
    let pods = cluster.pods();
    pods.create(with_env).await?;
    let ready = pods.wait_ready("env", LIMIT).await?;
    let env = exec(node, "env", "main", "env").await?;
    let ip = keelson_tests::pods::ip(&ready).unwrap_or_default();
    for line in [
        "PLAIN=a b",
        "EXPANDED=a b-$(COLOUR)-$(PLAIN)-$(NOWHERE)",
        "COLOUR=blue",
        "WORD=sesame",
        "NAME=env",
        &format!("IP={ip}"),
        "HOST=192.0.2.10",
        "LABEL=front",
        "MEMORY=64",
        "LATER=blue",
        "S_colour=blue",
        "S_size=9",
        "word=sesame",
        "KUBERNETES_SERVICE_HOST=10.96.0.1",
        "HOSTNAME=env",
    ] {
        ensure!(env.lines().any(|l| l == line), "{line} is not in\n{env}");
    }
    ensure!(!env.contains("MAYBE="), "an optional key that is not there was set");
    pods.delete("env", LIMIT).await
}

async fn updates(cluster: &Cluster, node: &Node) -> Result<()> {
    let kubectl = &cluster.kubectl;
    kubectl
        .run(&["create", "configmap", "page", "--from-literal=index.html=one", "--from-literal=other=x"])
        .await?;
    kubectl.run(&["create", "secret", "generic", "pass", "--from-literal=word=one"]).await?;
    let mut container = sleeper("main");
    container["volumeMounts"] = json!([
        {"name": "page", "mountPath": "/page", "readOnly": true},
        {"name": "pass", "mountPath": "/pass", "readOnly": true},
        {"name": "me", "mountPath": "/me"},
        {"name": "all", "mountPath": "/all"},
    ]);
    let mut with_files = pod("files", node.agent.node(), json!([container]));
    with_files["metadata"]["labels"] = json!({"stage": "one"});
    with_files["spec"]["volumes"] = json!([
        {"name": "page", "configMap": {"name": "page", "items": [{"key": "index.html", "path": "deep/page.html"}]}},
        {"name": "pass", "secret": {"secretName": "pass", "defaultMode": 0o400}},
        {"name": "me", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "all", "projected": {"sources": [
            {"configMap": {"name": "page", "items": [{"key": "other", "path": "other"}]}},
            {"secret": {"name": "pass"}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ]}},
    ]);
    let pods = cluster.pods();
    pods.create(with_files).await?;
    pods.wait_ready("files", LIMIT).await?;
    let read = "cat /page/deep/page.html /pass/word /me/labels /all/other /all/word /all/name; stat -L -c ' %a' /pass/word";
    let first = exec(node, "files", "main", read).await?;
    ensure!(first == "oneonestage=\"one\"xonefiles 400\n", "the files hold {first:?}");
    let before = exec(node, "files", "main", "readlink /page/..data").await?;
    kubectl.run(&["patch", "configmap", "page", "-p", r#"{"data":{"index.html":"two"}}"#]).await?;
    kubectl.run(&["patch", "secret", "pass", "-p", r#"{"stringData":{"word":"two"}}"#]).await?;
    kubectl.run(&["label", "pod", "files", "stage=two", "--overwrite"]).await?;
    let wanted = "twotwostage=\"two\"xtwofiles 400\n";
    until_true("the files follow", Duration::from_secs(60), async || {
        let now = exec(node, "files", "main", read).await?;
        ensure!(now == wanted, "they hold {now:?}");
        Ok(true)
    })
    .await?;
    ensure!(
        exec(node, "files", "main", "readlink /page/..data").await? != before,
        "the link was not swapped"
    );
    pods.delete("files", LIMIT).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn missing(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut by_env = sleeper("main");
    by_env["env"] = json!([{"name": "X", "valueFrom": {"secretKeyRef": {"name": "late", "key": "word"}}}]);
    pods.create(pod("by-env", node.agent.node(), json!([by_env]))).await?;
    let mut by_file = sleeper("main");
    by_file["volumeMounts"] = json!([{"name": "late", "mountPath": "/late"}]);
    let mut with_volume = pod("by-file", node.agent.node(), json!([by_file]));
    with_volume["spec"]["volumes"] = json!([{"name": "late", "secret": {"secretName": "late"}}]);
    pods.create(with_volume).await?;
    let waiting = pods.wait_waiting("by-env", "CreateContainerConfigError", LIMIT).await?;
    let states = waiting.status.and_then(|s| s.container_statuses).unwrap_or_default();
    let message =
        states[0].state.as_ref().and_then(|s| s.waiting.as_ref()?.message.clone()).unwrap_or_default();
    ensure!(message.contains("late"), "the message is {message:?}");
    until_true("FailedMount is reported", LIMIT, async || {
        Ok(pods.event_reasons("by-file").await?.iter().any(|r| r == "FailedMount"))
    })
    .await?;
    cluster.kubectl.run(&["create", "secret", "generic", "late", "--from-literal=word=there"]).await?;
    pods.wait_ready("by-env", LIMIT).await?;
    pods.wait_ready("by-file", LIMIT).await?;
    ensure!(exec(node, "by-env", "main", "echo $X").await? == "there\n");
    ensure!(exec(node, "by-file", "main", "cat /late/word").await? == "there");
    pods.delete("by-env", LIMIT).await?;
    pods.delete("by-file", LIMIT).await
}

async fn directories(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let host = node.agent.root_dir().join("kept-on-host");
    let mount = json!([{"name": "shared", "mountPath": "/shared"}, {"name": "host", "mountPath": "/host"},
                       {"name": "memory", "mountPath": "/memory"}]);
    let mut writer = shell(
        "writer",
        &format!(
            "echo hello >/shared/word; echo kept >/host/word; chmod 700 /own; {}",
            keelson_tests::pods::SLEEP
        ),
    );
    writer["volumeMounts"] = mount.clone();
    let more = json!([{"name": "own", "mountPath": "/own"}, {"name": "notes", "mountPath": "/notes"}]);
    writer["volumeMounts"]
        .as_array_mut()
        .into_iter()
        .for_each(|m| m.extend(more.as_array().cloned().unwrap_or_default()));
    // Not root, in a part of the volume that nobody has made.
    let mut user = shell("user", &format!("echo mine >/part/word; {}", keelson_tests::pods::SLEEP));
    user["securityContext"] = json!({"runAsUser": 1000});
    user["volumeMounts"] = json!([{"name": "shared", "mountPath": "/part", "subPath": "made/on/demand"}]);
    let mut reader = sleeper("reader");
    reader["volumeMounts"] = mount;
    let mut two = pod("dirs", node.agent.node(), json!([writer, reader, user]));
    two["spec"]["volumes"] = json!([
        {"name": "own", "emptyDir": {}},
        {"name": "notes", "downwardAPI": {"items": [{"path": "all", "fieldRef": {"fieldPath": "metadata.annotations"}}]}},
        {"name": "shared", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "host", "hostPath": {"path": host, "type": "DirectoryOrCreate"}},
    ]);
    let pods = cluster.pods();
    pods.create(two).await?;
    pods.wait_ready("dirs", LIMIT).await?;
    until_true("one sees what the other wrote", LIMIT, async || {
        Ok(exec(node, "dirs", "reader", "cat /shared/word").await? == "hello\n")
    })
    .await?;
    until_true("a user writes into a part of it", LIMIT, async || {
        Ok(exec(node, "dirs", "reader", "cat /shared/made/on/demand/word").await? == "mine\n")
    })
    .await?;
    // An agent that starts prepares every volume again; that it has shows where an annotation appears.
    node.agent.kill()?;
    node.agent.restart().await?;
    cluster.kubectl.run(&["annotate", "pod", "dirs", "seen=again"]).await?;
    until_true("the volumes are prepared again", LIMIT, async || {
        Ok(exec(node, "dirs", "writer", "cat /notes/all").await?.contains("seen=\"again\""))
    })
    .await?;
    let mode = exec(node, "dirs", "writer", "stat -c %a /own").await?;
    ensure!(mode == "700\n", "the pod had made it 700, it is {mode:?}");
    let kind = exec(node, "dirs", "reader", "grep ' /memory ' /proc/mounts").await?;
    ensure!(kind.contains("tmpfs"), "the memory volume is {kind:?}");
    pods.delete("dirs", LIMIT).await?;
    ensure!(std::fs::read_to_string(host.join("word"))? == "kept\n", "what was written to the host is gone");
    std::fs::remove_dir_all(&host)?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn refused(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut container = sleeper("main");
    container["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    let mut absent = pod("absent", node.agent.node(), json!([container.clone()]));
    absent["spec"]["volumes"] =
        json!([{"name": "v", "hostPath": {"path": "/nowhere/at/all", "type": "Directory"}}]);
    let mut git = pod("git", node.agent.node(), json!([container]));
    git["spec"]["volumes"] =
        json!([{"name": "v", "gitRepo": {"repository": "https://example.invalid/x.git"}}]);
    pods.create(absent).await?;
    pods.create(git).await?;
    pods.create(pod("bystander", node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready("bystander", LIMIT).await?;
    for name in ["absent", "git"] {
        until_true("FailedMount is reported", LIMIT, async || {
            Ok(pods.event_reasons(name).await?.iter().any(|r| r == "FailedMount"))
        })
        .await?;
    }
    for name in ["absent", "git", "bystander"] {
        pods.delete(name, LIMIT).await?;
    }
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}
