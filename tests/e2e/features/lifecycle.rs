//! The order in a pod's life: who waits for whom at its start, at its end, and when all of it starts over.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::pods::{condition, ip, is_ready, phase, pod, prepared, shell, sleeper};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{LIMIT, exec, exec_to_end};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    let case = "all preStop hooks run at once, and a sidecar is signalled last";
    suite.case(case, LIMIT * 2, ending(cluster, node)).await;
    cluster.reset(suite, node).await;
    let case = "what follows a sidecar waits for its startup probe";
    suite.case(case, LIMIT * 2, sidecar_starts(cluster, node)).await;
    cluster.reset(suite, node).await;
    let case = "an exit that asks for it restarts all containers in place";
    suite.case(case, LIMIT * 2, restart_all(cluster, node)).await;
    cluster.reset(suite, node).await;
    let case = "a deadline that passed and a pull secret that is missing are events";
    suite.case(case, LIMIT * 2, events(cluster, node)).await;
    cluster.reset(suite, node).await;
}

fn sharing(mut container: Value) -> Value {
    container["volumeMounts"] = json!([{"name": "shared", "mountPath": "/shared"}]);
    container
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let lists = pod.status.iter().flat_map(|s| [&s.init_container_statuses, &s.container_statuses]);
    lists.flatten().flatten().find(|c| c.name == name)
}

fn exit_code(pod: &Pod, name: &str) -> Option<i32> {
    Some(find(pod, name)?.state.as_ref()?.terminated.as_ref()?.exit_code)
}

fn restarts(pod: &Pod, name: &str) -> Option<i32> {
    find(pod, name).map(|c| c.restart_count)
}

/// The main container ends when the sidecar's hook has begun, which is the time to serve its last. Were the hook held back
/// until then, it would be killed. The sidecar looks for what the main container leaves when it is done.
async fn ending(cluster: &Cluster, node: &Node) -> Result<()> {
    const HOLD: &str = "keelson.test/hold";
    let pods = cluster.pods();
    let wait = "until [ -e /shared/hook ]; do sleep 0.1; done";
    let serve = "while :; do sleep 0.2; done";
    let main = prepared("main", &format!("trap '{wait}; touch /shared/done; exit 0' TERM"), serve);
    let last = "trap 'test -e /shared/done && exit 0; exit 3' TERM";
    let mut sidecar = sharing(prepared("sidecar", last, serve));
    sidecar["restartPolicy"] = json!("Always");
    sidecar["lifecycle"] = json!({"preStop": {"exec": {"command": ["touch", "/shared/hook"]}}});
    let mut ordered = pod("ordered", node.agent.node(), json!([sharing(main)]));
    ordered["metadata"]["finalizers"] = json!([HOLD]);
    ordered["spec"]["terminationGracePeriodSeconds"] = json!(20);
    ordered["spec"]["initContainers"] = json!([sidecar]);
    ordered["spec"]["volumes"] = json!([{"name": "shared", "emptyDir": {}}]);
    pods.create(ordered).await?;
    pods.wait_ready("ordered", LIMIT).await?;
    pods.api.delete("ordered", &DeleteParams::default()).await?;
    let ended = pods.wait("ordered", "both have ended", LIMIT, |p| {
        exit_code(p, "main").is_some() && exit_code(p, "sidecar").is_some()
    });
    let ended = ended.await?;
    let codes = (exit_code(&ended, "main"), exit_code(&ended, "sidecar"));
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.api.patch("ordered", &PatchParams::default(), &release).await?;
    ensure!(codes == (Some(0), Some(0)), "main and sidecar exited with {codes:?}");
    Ok(())
}

async fn sidecar_starts(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut sidecar = sleeper("sidecar");
    sidecar["restartPolicy"] = json!("Always");
    sidecar["startupProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1, "failureThreshold": 600});
    let mut held = pod("held", node.agent.node(), json!([sleeper("main")]));
    held["spec"]["initContainers"] = json!([sidecar, shell("init", "exit 0")]);
    pods.create(held).await?;
    let runs =
        |p: &Pod| find(p, "sidecar").is_some_and(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()));
    pods.wait("held", "the sidecar runs", LIMIT, runs).await?;
    // A probe that fails is one that was run: by then a plan was made that knew of it.
    until_true("its probe has failed", LIMIT, async || {
        Ok(pods.event_reasons("held").await?.iter().any(|r| r == "Unhealthy"))
    })
    .await?;
    let there = node.runtime.containers_of("held").await?;
    ensure!(there.iter().all(|c| c.name == "sidecar"), "{} containers were made", there.len());
    exec(node, "held", "sidecar", "touch /tmp/up").await?;
    pods.wait_ready("held", LIMIT).await?;
    pods.delete("held", LIMIT).await
}

async fn restart_all(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let ask = "trap 'exit 0' TERM; until [ -e /tmp/ask ]; do sleep 0.1; done; exit 42";
    let mut asker = shell("asker", ask);
    asker["restartPolicy"] = json!("Never");
    asker["restartPolicyRules"] = json!([rule]);
    let mut all = pod("all", node.agent.node(), json!([sharing(sleeper("other")), asker]));
    all["spec"]["restartPolicy"] = json!("Never");
    all["spec"]["initContainers"] = json!([sharing(shell("init", "echo run >>/shared/runs"))]);
    all["spec"]["volumes"] = json!([{"name": "shared", "emptyDir": {}}]);
    pods.create(all).await?;
    let before = pods.wait_ready("all", LIMIT).await?;
    ensure!(condition(&before, "AllContainersRestarting").as_deref() == Some("False"));
    exec_to_end(node, "all", "asker", "touch /tmp/ask").await?;
    let after = pods.wait("all", "all run again, or it has ended", LIMIT, |p| {
        let again = ["init", "other", "asker"].iter().all(|name| restarts(p, name) == Some(1));
        (again && is_ready(p)) || matches!(phase(p).as_str(), "Succeeded" | "Failed")
    });
    let after = after.await?;
    ensure!(phase(&after) == "Running", "it is {}", phase(&after));
    ensure!(ip(&after) == ip(&before), "it has another sandbox");
    ensure!(condition(&after, "AllContainersRestarting").as_deref() == Some("False"));
    let last =
        find(&after, "asker").and_then(|c| c.last_state.clone()?.terminated).context("no last state")?;
    ensure!(last.exit_code == 42, "its last state is {last:?}");
    let runs = exec(node, "all", "other", "cat /shared/runs").await?;
    ensure!(runs.lines().count() == 2, "its volume holds {runs:?}");
    pods.delete("all", LIMIT).await
}

async fn events(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut late = pod("late", node.agent.node(), json!([sleeper("main")]));
    late["spec"]["activeDeadlineSeconds"] = json!(1);
    pods.create(late).await?;
    let mut poor = pod("poor", node.agent.node(), json!([sleeper("main")]));
    poor["spec"]["imagePullSecrets"] = json!([{"name": "nowhere"}]);
    pods.create(poor).await?;
    let failed = pods.wait_phase("late", "Failed", LIMIT).await?;
    ensure!(failed.status.and_then(|s| s.reason).as_deref() == Some("DeadlineExceeded"));
    pods.wait_ready("poor", LIMIT).await?;
    for (name, reason) in [("late", "DeadlineExceeded"), ("poor", "FailedToRetrieveImagePullSecret")] {
        until_true(&format!("{reason} is reported"), LIMIT, async || {
            Ok(pods.event_reasons(name).await?.iter().any(|r| r == reason))
        })
        .await?;
        pods.delete(name, LIMIT).await?;
    }
    Ok(())
}
