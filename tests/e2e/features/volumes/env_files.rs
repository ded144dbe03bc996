//! Variables out of files that an init container writes.

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::leftovers;
use keelson_tests::pods::{pod, shell, sleeper};
use keelson_tests::suite::Suite;
use serde_json::{Value, json};

use super::super::{LIMIT, exec};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    let case = "a container has variables from a file that another one has written";
    suite.case(case, LIMIT * 2, written(cluster, node)).await;
    cluster.reset(suite, node).await;
    let case = "a file of variables that is missing, broken or outside is said to be so";
    suite.case(case, LIMIT * 4, refused(cluster, node)).await;
    cluster.reset(suite, node).await;
}

fn reference(name: &str, path: &str, key: &str, optional: bool) -> Value {
    let from = json!({"volumeName": "config", "path": path, "key": key, "optional": optional});
    json!({"name": name, "valueFrom": {"fileKeyRef": from}})
}

/// A pod whose init container runs a line in the volume, and whose main container has these variables.
fn with_files(name: &str, node: &Node, volume: Value, line: &str, env: Value) -> Value {
    let mut writer = shell("writer", &format!("cd /config && {line}"));
    writer["volumeMounts"] = json!([{"name": "config", "mountPath": "/config"}]);
    let mut main = sleeper("main");
    main["env"] = env;
    let mut made = pod(name, node.agent.node(), json!([main]));
    made["spec"]["initContainers"] = json!([writer]);
    made["spec"]["volumes"] = json!([{"name": "config", "emptyDir": volume}]);
    made
}

async fn written(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let line = r##"mkdir deep && printf "# made here\nMODE='dark'\nTEXT='two\nlines' # said\n" >deep/env && ln -s deep/env link"##;
    let env = json!([
        reference("MODE", "deep/env", "MODE", false),
        reference("TEXT", "link", "TEXT", false),
        reference("ABSENT", "deep/env", "OTHER", true),
        reference("NOWHERE", "no/file", "MODE", true),
        {"name": "TOLD", "value": "it is $(MODE)"},
    ]);
    for (name, volume) in [("on-disk", json!({})), ("in-memory", json!({"medium": "Memory"}))] {
        pods.create(with_files(name, node, volume, line, env.clone())).await?;
        pods.wait_ready(name, LIMIT).await?;
        let said =
            exec(node, name, "main", r#"echo "$MODE|$TEXT|$TOLD|${ABSENT-unset}|${NOWHERE-unset}""#).await?;
        ensure!(said == "dark|two\nlines|it is dark|unset|unset\n", "{name} has {said:?}");
        ensure!(
            exec(node, name, "main", "test ! -e /config && echo none").await? == "none\n",
            "it is mounted"
        );
        pods.delete(name, LIMIT).await?;
    }
    leftovers::wait_clean(node, LIMIT).await
}

async fn refused(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let cases = [
        ("missing", "true", "no file \"env\""),
        ("no-key", "echo \"OTHER='1'\" >env", "key \"KEY\" not found"),
        ("broken", "echo KEY=s3cret >env", "line 1"),
        ("absolute-link", "ln -s /etc/hostname env", "leads out of the volume"),
        ("link-upwards", "ln -s ../../../../../../etc/passwd env", "leads out of the volume"),
        ("directory", "mkdir env", "not a regular file"),
        ("pipe", "mkfifo env", "not a regular file"),
        ("huge", "truncate -s 16777216 env", "larger than"),
    ];
    for (name, line, expected) in cases {
        let env = json!([reference("X", "env", "KEY", false)]);
        pods.create(with_files(name, node, json!({}), line, env)).await?;
        let seen = pods.wait_waiting(name, "CreateContainerConfigError", LIMIT).await?;
        let statuses = seen.status.and_then(|s| s.container_statuses).unwrap_or_default();
        let waiting = statuses.first().and_then(|c| c.state.clone()?.waiting).context("it does not wait")?;
        let message = waiting.message.unwrap_or_default();
        ensure!(message.contains(expected) && message.contains("\"config\""), "{name}: {message:?}");
        ensure!(
            !message.contains("s3cret") && !message.contains("root:"),
            "{name} tells what is in it: {message}"
        );
        pods.delete(name, LIMIT).await?;
    }
    leftovers::wait_clean(node, LIMIT).await
}
