//! fsGroup: who may write into a volume, also where something lies in it already.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::leftovers;
use keelson_tests::pods::{pod, sleeper, uid};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::json;

use super::super::{LIMIT, exec};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    let case = "a half-made emptyDir is given to the fsGroup with all that is in it, and nothing outside";
    suite.case(case, LIMIT * 2, half_made(cluster, node)).await;
    cluster.reset(suite, node).await;
}

async fn half_made(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    let mut container = sleeper("main");
    container["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 1000});
    container["volumeMounts"] =
        json!([{"name": "data", "mountPath": "/data"}, {"name": "notes", "mountPath": "/notes"}]);
    let mut grouped = pod("grouped", node.agent.node(), json!([container]));
    grouped["spec"]["securityContext"] = json!({"fsGroup": 2000});
    grouped["spec"]["volumes"] = json!([
        {"name": "data", "emptyDir": {}},
        {"name": "notes", "downwardAPI": {"items": [{"path": "all", "fieldRef": {"fieldPath": "metadata.annotations"}}]}},
    ]);
    pods.create(grouped).await?;
    let ready = pods.wait_ready("grouped", LIMIT).await?;
    let written = "touch /data/own && stat -c '%g %a' /data && stat -c %g /data/own";
    let said = exec(node, "grouped", "main", written).await?;
    ensure!(said == "2000 2777\n2000\n", "the volume is {said:?}");

    // As a kubelet leaves it that was killed half-way: something lies in it, and the mark is not there.
    node.agent.kill()?;
    let dir = node.agent.root_dir().join("pods").join(uid(&ready));
    let outside = node.agent.root_dir().join("outside");
    fs::write(&outside, "x")?;
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o600))?;
    let volume = dir.join("volumes/kubernetes.io~empty-dir/data");
    fs::create_dir(volume.join("deep"))?;
    fs::write(volume.join("deep/file"), "found")?;
    fs::set_permissions(volume.join("deep/file"), fs::Permissions::from_mode(0o600))?;
    symlink(&outside, volume.join("deep/link"))?;
    fs::remove_file(dir.join("plugins/kubernetes.io~empty-dir/data/ready")).context("the mark")?;
    node.agent.restart().await?;
    until_true("the user of the pod may read what lies there", LIMIT, async || {
        Ok(exec(node, "grouped", "main", "cat /data/deep/file").await.is_ok_and(|text| text == "found"))
    })
    .await?;
    let found = fs::metadata(&outside)?;
    ensure!((found.gid(), found.mode() & 0o777) == (0, 0o600), "a link led outside: {found:?}");
    fs::remove_file(&outside)?;
    pods.delete("grouped", LIMIT).await?;
    leftovers::wait_clean(node, LIMIT).await
}
