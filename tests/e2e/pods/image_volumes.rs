//! An image as a volume, on a runtime that is too old for it.

use anyhow::{Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::images::BUSYBOX;
use keelson_tests::leftovers;
use keelson_tests::pods::{pod, sleeper};
use serde_json::json;

use super::LIMIT;

pub(super) async fn refused(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut main = sleeper("main");
    main["volumeMounts"] = json!([{"name": "tools", "mountPath": "/tools"}]);
    let mut with_image = pod("with-image", node.agent.node(), json!([main]));
    with_image["spec"]["volumes"] =
        json!([{"name": "tools", "image": {"reference": BUSYBOX, "pullPolicy": "IfNotPresent"}}]);
    pods.create(with_image).await?;
    let seen = pods.wait_waiting("with-image", "CreateContainerError", LIMIT).await?;
    let statuses = seen.status.and_then(|s| s.container_statuses).unwrap_or_default();
    let waiting = statuses.first().and_then(|c| c.state.clone()?.waiting);
    let message = waiting.and_then(|w| w.message).unwrap_or_default();
    let said = message.contains("volume \"tools\"") && message.contains("cannot mount images");
    ensure!(said && message.contains("containerd 2.1 or newer can"), "the message is {message:?}");
    pods.delete("with-image", LIMIT).await?;
    leftovers::wait_clean(node, LIMIT).await
}
