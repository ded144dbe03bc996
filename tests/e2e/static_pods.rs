//! Pods from the manifest directory: mirrored, edited, deleted; with the apiserver there, away, and coming back; and what
//! nobody should have put there.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::images::{BUSYBOX, BUSYBOX_NEXT};
use keelson_tests::pods::{is_ready, uid};
use keelson_tests::suite::Suite;
use keelson_tests::terminal::Terminal;
use keelson_tests::wait::{until, until_true};
use keelson_tests::{leftovers, objects};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(60);
const MIRROR: &str = "kubernetes.io/config.mirror";

pub async fn body(suite: &mut Suite) -> Result<()> {
    let dir = suite.dir().to_owned();
    let mut cluster = Cluster::start(&dir, Extent::WithoutScheduler).await?;
    let mut node = cluster.join("node", 1, Kind::V2, json!({"fileCheckFrequency": "1s"})).await?;
    suite.case("mirrored, edited, deleted", LIMIT * 2, mirrored(&cluster, &node)).await;
    suite
        .case(
            "a mirror that is deleted comes back, the pod does not care",
            LIMIT,
            mirror_deleted(&cluster, &node),
        )
        .await;
    suite.case("the directory's bad files harm nobody", LIMIT, bad_manifests(&node)).await;
    let case = "the same with the apiserver away, and the mirror appears when it comes back";
    suite.case(case, LIMIT * 3, apiserver_away(&mut cluster, &mut node)).await;
    drop(node);
    let alone = Node::standalone(&dir, "alone", 2, Kind::Distribution).await?;
    suite.case("standalone, on the distribution's runtime", LIMIT * 2, standalone(&alone)).await;
    Ok(())
}

fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{app: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers:\n  - name: main\n    image: {image}\n    imagePullPolicy: IfNotPresent\n    \
         command: [sh, -c, \"trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done\"]\n"
    )
}

async fn mirrored(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    node.agent.place_manifest("web.yaml", &manifest("web", BUSYBOX))?;
    let mirror = pods.wait_ready("web-node", LIMIT).await?;
    let notes = mirror.metadata.annotations.clone().unwrap_or_default();
    ensure!(
        notes.contains_key(MIRROR) && notes.contains_key("kubernetes.io/config.hash"),
        "annotations are {notes:?}"
    );
    ensure!(
        notes.get("kubernetes.io/config.source").is_some_and(|s| s == "file"),
        "annotations are {notes:?}"
    );
    let owner = mirror.metadata.owner_references.clone().unwrap_or_default();
    ensure!(owner.iter().any(|o| o.kind == "Node" && o.name == "node"), "owners are {owner:?}");

    node.agent.place_manifest("web.yaml", &manifest("web", BUSYBOX_NEXT))?;
    let changed = |p: &Pod| {
        is_ready(p) && notes.get(MIRROR) != p.metadata.annotations.as_ref().and_then(|a| a.get(MIRROR))
    };
    until_true("the mirror follows the edit", LIMIT, async || Ok(changed(&pods.get("web-node").await?)))
        .await?;
    until_true("only the new containers run", LIMIT, async || {
        let seen = node.runtime.containers_of("web-node").await?;
        ensure!(seen.len() == 1 && seen[0].running, "{seen:?}");
        Ok(true)
    })
    .await?;

    node.agent.remove_manifest("web.yaml")?;
    objects::wait_gone(&pods.api, "web-node", None, LIMIT).await?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn mirror_deleted(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    node.agent.place_manifest("web.yaml", &manifest("web", BUSYBOX))?;
    let first = pods.wait_ready("web-node", LIMIT).await?;
    let running = node.runtime.containers_of("web-node").await?;
    cluster.kubectl.run(&["delete", "pod", "web-node", "--wait=false"]).await?;
    objects::wait_gone(&pods.api, "web-node", Some(&uid(&first)), LIMIT).await?;
    pods.wait_ready("web-node", LIMIT).await?;
    ensure!(node.runtime.containers_of("web-node").await? == running, "deleting the mirror touched the pod");
    node.agent.remove_manifest("web.yaml")?;
    objects::wait_gone(&pods.api, "web-node", None, LIMIT).await
}

/// Each of these is refused in the log by its name; the good one among them runs.
async fn bad_manifests(node: &Node) -> Result<()> {
    let unknown = manifest("unknown", BUSYBOX).replace("spec:\n", "spec:\n  colour: blue\n");
    let huge = format!("{}# {}\n", manifest("huge", BUSYBOX), "x".repeat(1 << 20));
    let twice = manifest("good", BUSYBOX_NEXT);
    let bad: [(&str, &str); 6] = [
        ("half.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: [\n"),
        (
            "service.yaml",
            "apiVersion: v1\nkind: Service\nmetadata: {name: service}\nspec: {ports: [{port: 80}]}\n",
        ),
        ("unknown.yaml", &unknown),
        ("huge.yaml", &huge),
        ("name.yaml", &manifest("../../escape", BUSYBOX)),
        ("empty.yaml", ""),
    ];
    for (file, content) in bad {
        node.agent.place_manifest(file, content)?;
    }
    std::fs::create_dir_all(node.agent.manifests().join("directory.yaml"))?;
    node.agent.place_manifest("good.yaml", &manifest("good", BUSYBOX))?;
    running(node, "good-node").await?;
    node.agent.place_manifest("zz-twin.yaml", &twice)?;
    for file in ["half.yaml", "service.yaml", "unknown.yaml", "huge.yaml", "name.yaml", "zz-twin.yaml"] {
        until_true(&format!("the log names {file}"), LIMIT, async || Ok(node.agent.log().contains(file)))
            .await?;
    }
    refused_are_listed(node, &["half.yaml", "service.yaml", "unknown.yaml", "huge.yaml", "good.yaml"])
        .await?;
    // The later file replaces the pod: between the two nothing of that name runs, and never both.
    until_true("one name, one pod", LIMIT, async || {
        let seen = node.runtime.containers().await?;
        ensure!(seen.iter().all(|c| c.pod == "good-node"), "also running: {seen:?}");
        let running = seen.iter().filter(|c| c.running).count();
        ensure!(running < 2, "two of one name run: {seen:?}");
        Ok(running == 1)
    })
    .await?;
    for (file, _) in bad {
        node.agent.remove_manifest(file)?;
    }
    node.agent.remove_manifest("zz-twin.yaml")?;
    running(node, "good-node").await?;
    slowly_written(node).await?;
    unreadable_directory(node).await?;
    std::fs::remove_dir(node.agent.manifests().join("directory.yaml"))?;
    node.agent.remove_manifest("good.yaml")?;
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

/// `keelson pods` has a line for each manifest that runs as no pod, with what is wrong in it.
async fn refused_are_listed(node: &Node, files: &[&str]) -> Result<()> {
    let rows = node.agent.pods().await?;
    for file in files {
        let row = rows.iter().find(|row| row["name"] == *file && row["phase"] == "Refused");
        let reason = row.and_then(|row| row["reason"].as_str()).unwrap_or_default();
        ensure!(reason.contains(file), "{file} is not among {rows:?}");
    }
    let unknown = rows.iter().find(|row| row["name"] == "unknown.yaml").context("unknown.yaml is missing")?;
    let reason = unknown["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("line 7") && reason.contains("spec.colour"), "the reason is {reason:?}");

    let mut command = tokio::process::Command::new(keelson_tests::built::agent()?);
    command.arg("pods").arg("--socket").arg(node.agent.socket());
    let mut terminal = Terminal::start(command, 24, 80)?;
    let shown = terminal.rest(LIMIT).await?;
    ensure!(shown.contains("service.yaml") && shown.contains('\u{2026}'), "the terminal shows {shown:?}");
    let long = shown.lines().find(|line| line.trim_end().chars().count() > 80);
    ensure!(long.is_none(), "a line is longer than the terminal: {long:?}");
    Ok(())
}

/// A file whose writer takes its time is no manifest until it is closed, and nothing is said of it before.
async fn slowly_written(node: &Node) -> Result<()> {
    let text = manifest("slow", BUSYBOX);
    let (first, rest) = text.split_at(text.len() / 2);
    let mut writer = std::fs::File::create(node.agent.manifests().join("slow.yaml"))?;
    writer.write_all(first.as_bytes())?;
    // Another one is read meanwhile, so the directory was looked at.
    node.agent.place_manifest("other.yaml", &manifest("other", BUSYBOX))?;
    running(node, "other-node").await?;
    ensure!(!node.agent.log().contains("slow.yaml"), "half of a manifest was read");
    writer.write_all(rest.as_bytes())?;
    drop(writer);
    running(node, "slow-node").await?;
    ensure!(!node.agent.log().contains("slow.yaml"), "half of a manifest was read");
    node.agent.remove_manifest("slow.yaml")?;
    node.agent.remove_manifest("other.yaml")
}

/// A directory that cannot be read says nothing about what should run.
async fn unreadable_directory(node: &Node) -> Result<()> {
    let before = running(node, "good-node").await?;
    let (dir, aside) = (node.agent.manifests(), node.agent.manifests().with_extension("aside"));
    std::fs::rename(&dir, &aside)?;
    std::os::unix::fs::symlink(&dir, &dir)?;
    until_true("the trouble is told of", LIMIT, async || {
        let rows = node.agent.pods().await?;
        Ok(rows.iter().any(|r| r["reason"].as_str().is_some_and(|r| r.contains("cannot be read"))))
    })
    .await?;
    ensure!(running(node, "good-node").await? == before, "the pod was started again");
    let rows = node.agent.pods().await?;
    let good = rows.iter().find(|row| row["name"] == "good-node");
    ensure!(good.is_some_and(|row| row["ready"] == true), "the pod is being stopped: {rows:?}");
    std::fs::remove_file(&dir)?;
    std::fs::rename(&aside, &dir)?;
    until_true("the trouble is over", LIMIT, async || {
        Ok(!node.agent.pods().await?.iter().any(|row| row["phase"] == "Refused"))
    })
    .await?;
    ensure!(running(node, "good-node").await? == before, "the pod was started again");
    Ok(())
}

async fn apiserver_away(cluster: &mut Cluster, node: &mut Node) -> Result<()> {
    node.agent.place_manifest("before.yaml", &manifest("before", BUSYBOX))?;
    let pods = cluster.pods();
    pods.wait_ready("before-node", LIMIT).await?;
    let before = running(node, "before-node").await?;
    cluster.plane.kill_apiserver()?;

    // Started, edited and deleted without an apiserver.
    node.agent.place_manifest("during.yaml", &manifest("during", BUSYBOX))?;
    let first = running(node, "during-node").await?;
    node.agent.place_manifest("during.yaml", &manifest("during", BUSYBOX_NEXT))?;
    until_true("the edit is followed", LIMIT, async || {
        let seen = node.runtime.containers_of("during-node").await?;
        Ok(seen.iter().any(|c| c.running && c.id != first))
    })
    .await?;
    node.agent.place_manifest("brief.yaml", &manifest("brief", BUSYBOX))?;
    running(node, "brief-node").await?;
    node.agent.remove_manifest("brief.yaml")?;
    until_true("brief is gone", LIMIT, async || {
        Ok(node.runtime.sandboxes_of("brief-node").await?.is_empty())
    })
    .await?;
    // An agent that starts now has never seen the apiserver, nor the text that a pod was started from.
    let second = running(node, "during-node").await?;
    node.agent.kill()?;
    node.agent.place_manifest("during.yaml", &manifest("during", BUSYBOX))?;
    node.agent.restart().await?;
    until_true(
        "the edit made meanwhile is followed, and the old text's container is gone",
        LIMIT,
        async || {
            let seen = node.runtime.containers_of("during-node").await?;
            let runs: Vec<_> = seen.iter().filter(|c| c.running).collect();
            ensure!(runs.len() < 2, "both run: {runs:?}");
            Ok(runs.iter().any(|c| c.id != second))
        },
    )
    .await?;
    node.agent.place_manifest("late.yaml", &manifest("late", BUSYBOX))?;
    running(node, "late-node").await?;

    cluster.plane.restart_apiserver().await?;
    for name in ["before-node", "during-node", "late-node"] {
        pods.wait_ready(name, LIMIT)
            .await
            .with_context(|| format!("the mirror of {name} after the return"))?;
    }
    ensure!(pods.list().await?.len() == 3, "other pods than the three are in the API");
    ensure!(running(node, "before-node").await? == before, "the pod from before was restarted");
    for file in ["before.yaml", "during.yaml", "late.yaml"] {
        node.agent.remove_manifest(file)?;
    }
    for name in ["before-node", "during-node", "late-node"] {
        objects::wait_gone(&pods.api, name, None, LIMIT).await?;
    }
    leftovers::wait_clean(node, Duration::from_secs(20)).await
}

async fn standalone(node: &Node) -> Result<()> {
    node.agent.place_manifest("web.json", &as_json("web"))?;
    let first = running(node, "web-alone").await?;
    until_true("`keelson pods` shows it ready", LIMIT, async || {
        let rows = node.agent.pods().await?;
        Ok(rows.len() == 1 && rows[0]["name"] == "web-alone" && rows[0]["ready"] == true)
    })
    .await?;
    node.agent.place_manifest("web.json", &as_json("web").replace(BUSYBOX, BUSYBOX_NEXT))?;
    until_true("the edit is followed", LIMIT, async || {
        let seen = node.runtime.containers_of("web-alone").await?;
        Ok(seen.len() == 1 && seen[0].running && seen[0].id != first)
    })
    .await?;
    node.agent.remove_manifest("web.json")?;
    leftovers::wait_clean(node, Duration::from_secs(30)).await
}

fn as_json(name: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1, "containers": [keelson_tests::pods::sleeper("main")],
            // Labels that every node has, also one that nobody has registered.
            "nodeSelector": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": "alone"},
        },
    })
    .to_string()
}

/// Waits until the pod's one container runs and returns its id.
async fn running(node: &Node, pod: &str) -> Result<String> {
    until(&format!("{pod} runs"), LIMIT, async || {
        let seen = node.runtime.containers_of(pod).await?;
        Ok(seen.into_iter().find(|c| c.running).map(|c| c.id))
    })
    .await
}
