//! Containers that keep ending: back-off, what status shows of the past, and the end of a pod that is done.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::images::{BUSYBOX, BUSYBOX_NEXT};
use keelson_tests::leftovers;
use keelson_tests::pods::{SLEEP, condition, is_ready, phase, pod, prepared, restarts, shell, sleeper};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::json;

use super::{LIMIT, exec_to_end};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    suite
        .case(
            "a crashing container is backed off from, its neighbour is not",
            LIMIT * 2,
            crash_loop(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
    suite
        .case(
            "what the agent itself has ended runs again, whatever it exited with",
            LIMIT * 2,
            ended_by_the_agent(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
    suite
        .case(
            "a running init container is not ended by a new image, and guests do not wait for it",
            LIMIT * 2,
            stuck_in_init(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
    suite
        .case(
            "an init container that fails is tried again and holds the rest back",
            LIMIT * 2,
            failing_init(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
    suite
        .case(
            "a job's pod succeeds and keeps its status until it is deleted",
            LIMIT * 2,
            completed(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
    suite
        .case("the termination message of a container is kept", LIMIT * 2, termination_message(cluster, node))
        .await;
    cluster.reset(suite, node).await;
    suite
        .case("a deleted pod does not wait for its back-off", LIMIT * 2, deleted_in_back_off(cluster, node))
        .await;
    cluster.reset(suite, node).await;
}

/// A probe or a new image ends a container that then exits with 0, which its policy alone would take for the end.
async fn ended_by_the_agent(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    // That it exits with 0 takes its trap.
    let mut unhealthy = prepared("main", "trap 'exit 0' TERM", SLEEP);
    unhealthy["livenessProbe"] = json!({"exec": {"command": ["test", "!", "-e", "/tmp/dead"]}, "periodSeconds": 1, "failureThreshold": 1});
    let mut by_probe = pod("by-probe", node.agent.node(), json!([unhealthy]));
    by_probe["spec"]["restartPolicy"] = json!("OnFailure");
    let mut by_image =
        pod("by-image", node.agent.node(), json!([prepared("main", "trap 'exit 0' TERM", SLEEP)]));
    by_image["spec"]["restartPolicy"] = json!("Never");
    pods.create(by_probe).await?;
    pods.create(by_image).await?;
    pods.wait_ready("by-probe", LIMIT).await?;
    pods.wait_ready("by-image", LIMIT).await?;
    exec_to_end(node, "by-probe", "main", "touch /tmp/dead").await?;
    cluster.kubectl.run(&["set", "image", "pod/by-image", &format!("main={BUSYBOX_NEXT}")]).await?;
    for name in ["by-probe", "by-image"] {
        let again = pods.wait(name, "it runs again, or has ended", LIMIT, |p| {
            (is_ready(p) && restarts(p, "main") == 1) || matches!(phase(p).as_str(), "Succeeded" | "Failed")
        });
        let again = again.await?;
        ensure!(phase(&again) == "Running", "{name} is {}", phase(&again));
        pods.delete(name, LIMIT).await?;
    }
    Ok(())
}

/// An init container that runs is let run to its end; a guest may look at a pod that is stuck in it.
async fn stuck_in_init(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut stuck = pod("stuck", node.agent.node(), json!([sleeper("main")]));
    let line = "trap 'exit 3' TERM; while [ ! -e /tmp/go ]; do sleep 1 & wait $!; done";
    stuck["spec"]["initContainers"] = json!([shell("init", line)]);
    pods.create(stuck).await?;
    let runs = pods.wait("stuck", "its init container runs", LIMIT, |p| runs(p, "init"));
    runs.await?;
    cluster.kubectl.run(&["set", "image", "pod/stuck", &format!("init={BUSYBOX_NEXT}")]).await?;
    for (name, target) in [("guest", "init"), ("lost", "main")] {
        let (name, target) = (format!("--container={name}"), format!("--target={target}"));
        let image = format!("--image={BUSYBOX}");
        let debug =
            ["debug", "stuck", &image, "--image-pull-policy=Never", "--profile=general", &name, &target];
        cluster.kubectl.run(&[&debug[..], &["--", "sh", "-c", SLEEP]].concat()).await?;
    }
    pods.wait("stuck", "the guest runs", LIMIT, |p| runs_as(p, "guest", |s| s.running.is_some())).await?;
    let lost = pods.wait("stuck", "the other one finds no target", LIMIT, |p| {
        runs_as(p, "lost", |s| {
            let reason = s.waiting.as_ref().and_then(|w| w.reason.as_deref());
            reason == Some("CreateContainerConfigError")
        })
    });
    lost.await?;
    exec_to_end(node, "stuck", "init", "touch /tmp/go").await?;
    let ready = pods.wait_ready("stuck", LIMIT).await?;
    let inits = ready.status.and_then(|s| s.init_container_statuses).unwrap_or_default();
    ensure!(inits[0].restart_count == 0, "the init container was ended for its new image");
    pods.delete("stuck", LIMIT).await
}

fn runs(pod: &Pod, container: &str) -> bool {
    runs_as(pod, container, |s| s.running.is_some())
}

fn runs_as(pod: &Pod, container: &str, is: impl Fn(&ContainerState) -> bool) -> bool {
    let lists = pod.status.iter().flat_map(|s| [&s.init_container_statuses, &s.ephemeral_container_statuses]);
    let mut found = lists.flatten().flatten().filter(|c| c.name == container);
    found.any(|c| c.state.as_ref().is_some_and(&is))
}

async fn crash_loop(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    pods.create(pod("crash", node.agent.node(), json!([shell("bad", "exit 1"), sleeper("good")]))).await?;
    let waiting = pods.wait_waiting("crash", "CrashLoopBackOff", LIMIT).await?;
    let count = restarts(&waiting, "bad");
    ensure!((1..=3).contains(&count), "{count} restarts before the back-off");
    ensure!(restarts(&waiting, "good") == 0);
    let states = waiting.status.and_then(|s| s.container_statuses).unwrap_or_default();
    let bad =
        states.first().and_then(|c| c.state.as_ref()?.waiting.as_ref()?.message.clone()).unwrap_or_default();
    ensure!(bad.starts_with("back-off 9s restarting"), "not as configured: {bad:?}");
    until_true("BackOff is reported", LIMIT, async || {
        Ok(pods.event_reasons("crash").await?.iter().any(|r| r == "BackOff"))
    })
    .await?;
    pods.delete("crash", LIMIT).await
}

async fn failing_init(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut init = shell("init", "test -e /flag/x && exit 0; touch /flag/x; exit 1");
    init["volumeMounts"] = json!([{"name": "flag", "mountPath": "/flag"}]);
    let mut with_init = pod("init-fails", node.agent.node(), json!([sleeper("main")]));
    with_init["spec"]["initContainers"] = json!([init]);
    with_init["spec"]["volumes"] = json!([{"name": "flag", "emptyDir": {}}]);
    pods.create(with_init).await?;
    let ready = pods.wait_ready("init-fails", LIMIT).await?;
    let inits = ready.status.and_then(|s| s.init_container_statuses).unwrap_or_default();
    ensure!(inits[0].restart_count == 1, "the init container was restarted {} times", inits[0].restart_count);
    let mut never = pod("init-never", node.agent.node(), json!([sleeper("main")]));
    never["spec"]["initContainers"] = json!([shell("init", "exit 1")]);
    never["spec"]["restartPolicy"] = json!("Never");
    pods.create(never).await?;
    let failed = pods.wait_phase("init-never", "Failed", LIMIT).await?;
    ensure!(condition(&failed, "Initialized").as_deref() == Some("False"));
    ensure!(
        !node.runtime.containers_of("init-never").await?.iter().any(|c| c.name == "main"),
        "main was started"
    );
    pods.delete("init-fails", LIMIT).await?;
    pods.delete("init-never", LIMIT).await
}

async fn completed(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    let mut job = pod("job", node.agent.node(), json!([shell("main", "echo done; exit 0")]));
    job["spec"]["restartPolicy"] = json!("OnFailure");
    pods.create(job).await?;
    let done = pods.wait_phase("job", "Succeeded", LIMIT).await?;
    ensure!(!is_ready(&done));
    let status = done.status.clone().and_then(|s| s.container_statuses).unwrap_or_default();
    let ended = status[0].state.as_ref().and_then(|s| s.terminated.as_ref());
    ensure!(
        ended.is_some_and(|t| t.exit_code == 0 && t.reason.as_deref() == Some("Completed")),
        "state is {ended:?}"
    );
    node.agent.kill()?;
    node.agent.restart().await?;
    let mut running = pod("after", node.agent.node(), json!([sleeper("main")]));
    running["metadata"]["labels"] = json!({"after": "restart"});
    pods.create(running).await?;
    pods.wait_ready("after", LIMIT).await?;
    let after = pods.get("job").await?;
    ensure!(phase(&after) == "Succeeded", "after a restart the phase is another");
    ensure!(node.runtime.containers_of("job").await?.iter().all(|c| c.attempt == 0), "the job was run again");
    pods.delete("job", LIMIT).await?;
    pods.delete("after", LIMIT).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn termination_message(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let by_file = shell("file", "echo -n 'the disk was full' >/dev/termination-log; exit 1");
    let mut by_log = shell("log", "echo 'and out it went'; exit 1");
    by_log["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    let mut both = pod("messages", node.agent.node(), json!([by_file, by_log]));
    both["spec"]["restartPolicy"] = json!("Never");
    pods.create(both).await?;
    let failed = pods.wait_phase("messages", "Failed", LIMIT).await?;
    let states = failed.status.and_then(|s| s.container_statuses).unwrap_or_default();
    let messages: Vec<String> =
        states.iter().filter_map(|c| c.state.as_ref()?.terminated.as_ref()?.message.clone()).collect();
    ensure!(messages.iter().any(|w| w == "the disk was full"), "the messages are {messages:?}");
    ensure!(messages.iter().any(|w| w.contains("and out it went")), "the messages are {messages:?}");
    pods.delete("messages", LIMIT).await
}

async fn deleted_in_back_off(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut doomed = pod("doomed", node.agent.node(), json!([shell("main", "exit 1")]));
    doomed["spec"]["terminationGracePeriodSeconds"] = json!(30);
    pods.create(doomed).await?;
    pods.wait_waiting("doomed", "CrashLoopBackOff", LIMIT).await?;
    // The back-off is ten seconds at least, and the grace thirty: neither is waited for when nothing runs.
    pods.delete("doomed", Duration::from_secs(8)).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}
