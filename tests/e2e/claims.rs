//! Volumes that outlive their pods: a claim, what it is bound to, and what is shown of it to a pod, over killed agents and a
//! kubelet in between.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::parts::Part;
use keelson_tests::pods::{pod, sleeper};
use keelson_tests::runtime::Seen;
use keelson_tests::suite::{Suite, folder};
use keelson_tests::wait::until_true;
use keelson_tests::{built, leftovers, objects};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let disk = folder(suite.dir(), "disk")?;
    let cluster = Cluster::start(suite.dir(), Extent::WithoutScheduler).await?;
    let mut node = cluster.join("node", 1, Kind::V2, json!({})).await?;
    let case =
        "a claim's directory is shown to its pods, once, also by a killed agent and a kubelet, and stays";
    suite.case(case, LIMIT * 4, shown(&cluster, &mut node, &disk)).await;
    if node.agent.process_id().is_none() {
        node.agent.hand_over(&built::agent()?).await?;
    }
    cluster.reset(suite, &mut node).await;
    let case = "what keeps a claim from being used is said, and the pod waits until it is over";
    suite.case(case, LIMIT * 6, waited_for(&cluster, &node, &disk)).await;
    cluster.reset(suite, &mut node).await;
    let case = "a volume that is made for its pod goes with it";
    suite.case(case, LIMIT * 2, made_for_pod(&cluster, &node, &disk)).await;
    cluster.reset(suite, &mut node).await;
    node.agent.check_alive()
}

/// A volume of this class alone, which only a claim of the same can be bound to.
fn persistent(name: &str, source: Value) -> Value {
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["node"]});
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": name,
            "persistentVolumeReclaimPolicy": "Retain",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    });
    if let (Value::Object(into), Value::Object(from)) = (&mut volume["spec"], source) {
        into.extend(from);
    }
    volume
}

fn claim_spec(class: &str) -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}},
    })
}

struct Storage {
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
}

impl Storage {
    fn new(cluster: &Cluster) -> Self {
        let client = cluster.client.clone();
        Self { claims: Api::default_namespaced(client.clone()), volumes: Api::all(client) }
    }

    async fn make(&self, volume: Value) -> Result<()> {
        self.volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
        Ok(())
    }

    /// A claim of the name and class of a volume.
    async fn claim(&self, name: &str) -> Result<()> {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": claim_spec(name),
        });
        self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        Ok(())
    }

    async fn bound(&self, name: &str) -> Result<()> {
        let bound =
            |c: &PersistentVolumeClaim| c.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        objects::wait_for(&self.claims, name, "it is bound", LIMIT, bound).await.map(drop)
    }

    async fn remove(&self, name: &str) -> Result<()> {
        self.claims.delete(name, &DeleteParams::default()).await?;
        objects::wait_gone(&self.claims, name, None, LIMIT).await?;
        self.volumes.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }
}

fn user_of(name: &str, claim: Value) -> Value {
    let mut container = sleeper("main");
    container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    container["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000});
    let mut user = pod(name, "node", json!([container]));
    user["spec"]["securityContext"] = json!({"fsGroup": 2000});
    user["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": claim}]);
    user
}

async fn in_pod(node: &Node, pod: &str, line: &str) -> Result<String> {
    let all = node.runtime.containers_of(pod).await?;
    let running = all.into_iter().find(|c| c.running).with_context(|| format!("{pod} does not run"))?;
    node.runtime.exec(&running.id, &["sh", "-c", line]).await
}

async fn running(node: &Node) -> Result<Vec<Seen>> {
    Ok(node.runtime.containers().await?.into_iter().filter(|c| c.running).collect())
}

/// How often the volume is mounted.
fn mounts(node: &Node) -> usize {
    let all = leftovers::mounts_below(&node.agent.root_dir());
    all.iter().filter(|point| point.contains("kubernetes.io~local-volume/")).count()
}

async fn shown(cluster: &Cluster, node: &mut Node, disk: &Path) -> Result<()> {
    let (pods, storage) = (cluster.pods(), Storage::new(cluster));
    fs::write(disk.join("old"), "from before")?;
    storage.make(persistent("disk", json!({"local": {"path": disk}}))).await?;
    storage.claim("disk").await?;
    storage.bound("disk").await?;
    pods.create(user_of("writer", json!({"claimName": "disk"}))).await?;
    pods.wait_ready("writer", LIMIT).await?;
    ensure!(in_pod(node, "writer", "cat /data/old").await? == "from before", "it is another directory");
    in_pod(node, "writer", "echo mine >/data/new").await?;
    ensure!(fs::metadata(disk.join("new"))?.gid() == 2000, "it is not the fsGroup's");
    pods.create(user_of("reader", json!({"claimName": "disk", "readOnly": true}))).await?;
    pods.wait_ready("reader", LIMIT).await?;
    ensure!(
        in_pod(node, "reader", "cat /data/new").await? == "mine\n",
        "it does not see what the other has written"
    );
    ensure!(in_pod(node, "reader", "touch /data/x").await.is_err(), "it may write");
    ensure!(mounts(node) == 2, "{} mounts", mounts(node));
    let before = running(node).await?;

    node.agent.kill()?;
    node.agent.restart().await?;
    pods.create(user_of("later", json!({"claimName": "disk"}))).await?;
    pods.wait_ready("later", LIMIT).await?;
    pods.delete("later", LIMIT).await?;
    ensure!(running(node).await? == before, "a container was restarted");
    ensure!(mounts(node) == 2, "{} mounts after the agent was killed", mounts(node));

    if Part::Kubelet.available().is_ok() {
        node.agent.stop().await?;
        node.agent.hand_over(&Part::Kubelet.program()?).await?;
        let theirs = async {
            pods.create(user_of("theirs", json!({"claimName": "disk"}))).await?;
            pods.wait_ready("theirs", LIMIT).await?;
            ensure!(
                in_pod(node, "theirs", "cat /data/new").await? == "mine\n",
                "the kubelet shows another directory"
            );
            ensure!(mounts(node) == 3, "{} mounts with a kubelet in charge", mounts(node));
            anyhow::Ok(())
        };
        let theirs = theirs.await;
        node.agent.stop().await?;
        node.agent.hand_over(&built::agent()?).await?;
        theirs.context("with a kubelet in charge")?;
        pods.delete("theirs", LIMIT).await?;
        ensure!(running(node).await? == before, "a container was restarted");
        ensure!(mounts(node) == 2, "{} mounts after the kubelet", mounts(node));
    }

    for name in ["writer", "reader"] {
        pods.delete(name, LIMIT).await?;
    }
    leftovers::wait_clean(node, LIMIT).await?;
    ensure!(fs::read_to_string(disk.join("new"))? == "mine\n", "what was written is gone");
    storage.remove("disk").await
}

/// Waits until the pod's events say this of its volume.
async fn said(cluster: &Cluster, pod: &str, words: &str) -> Result<()> {
    until_true(&format!("{pod}: {words}"), LIMIT, async || {
        let events = cluster.pods().events_about(pod).await?;
        let failed = events.iter().filter(|e| e.reason.as_deref() == Some("FailedMount"));
        let messages: Vec<_> = failed.filter_map(|e| e.message.clone()).collect();
        ensure!(messages.iter().any(|m| m.contains(words)), "the events say {messages:?}");
        Ok(true)
    })
    .await
}

async fn waited_for(cluster: &Cluster, node: &Node, disk: &Path) -> Result<()> {
    let (pods, storage) = (cluster.pods(), Storage::new(cluster));
    let elsewhere = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["another"]});
    let elsewhere = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]}});
    let nowhere = disk.join("nowhere");
    for (name, source, words) in [
        (
            "far",
            json!({"local": {"path": disk}, "nodeAffinity": elsewhere}),
            "its node affinity does not match the node's labels",
        ),
        (
            "shared",
            json!({"nfs": {"server": "192.0.2.99", "path": "/"}}),
            "is of kind nfs, which this agent does not support",
        ),
        ("absent", json!({"local": {"path": nowhere}}), "cannot be used: No such file or directory"),
    ] {
        storage.make(persistent(name, source)).await?;
        storage.claim(name).await?;
        storage.bound(name).await?;
        pods.create(user_of(name, json!({"claimName": name}))).await?;
        said(cluster, name, words).await?;
    }
    // At once: the pauses between attempts grow.
    fs::create_dir(&nowhere)?;
    pods.wait_ready("absent", LIMIT * 2).await?;
    pods.create(user_of("late", json!({"claimName": "late"}))).await?;
    said(cluster, "late", "persistentvolumeclaim \"late\" not found").await?;
    storage.claim("late").await?;
    said(cluster, "late", "is not bound to a volume yet; it is Pending").await?;
    storage.make(persistent("late", json!({"hostPath": {"path": disk, "type": "Directory"}}))).await?;
    pods.wait_ready("late", LIMIT * 2).await?;
    ensure!(node.runtime.containers_of("far").await?.is_empty(), "a pod runs without its volume");
    for name in ["far", "shared", "absent", "late"] {
        pods.delete(name, LIMIT).await?;
        storage.remove(name).await?;
    }
    leftovers::wait_clean(node, LIMIT).await
}

async fn made_for_pod(cluster: &Cluster, node: &Node, disk: &Path) -> Result<()> {
    let (pods, storage) = (cluster.pods(), Storage::new(cluster));
    storage.make(persistent("scratch", json!({"local": {"path": disk}}))).await?;
    // Somebody else's, of the name that the pod's own would have.
    storage.claim("taken-data").await?;
    let mut own = user_of("own", json!({}));
    let template = json!({"volumeClaimTemplate": {"spec": claim_spec("scratch")}});
    own["spec"]["volumes"] = json!([{"name": "data", "ephemeral": template}]);
    let mut taken = own.clone();
    taken["metadata"]["name"] = json!("taken");
    pods.create(own).await?;
    pods.create(taken).await?;
    pods.wait_ready("own", LIMIT).await?;
    in_pod(node, "own", "echo scratch >/data/scratch").await?;
    said(cluster, "taken", "PVC default/taken-data was not created for pod default/taken (pod is not owner)")
        .await?;
    for name in ["own", "taken"] {
        pods.delete(name, LIMIT).await?;
    }
    objects::wait_gone(&storage.claims, "own-data", None, LIMIT).await?;
    leftovers::wait_clean(node, LIMIT).await?;
    ensure!(
        fs::read_to_string(disk.join("scratch"))? == "scratch\n",
        "a directory that is retained was emptied"
    );
    storage.claims.delete("taken-data", &DeleteParams::default()).await?;
    storage.volumes.delete("scratch", &DeleteParams::default()).await?;
    Ok(())
}
