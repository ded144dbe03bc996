//! Pods with users of their own, on a runtime that can give them: what they are inside, what the host sees, and that their ids
//! are theirs across a killed agent and records that lie.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::built;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::images::BUSYBOX;
use keelson_tests::leftovers;
use keelson_tests::parts::Part;
use keelson_tests::pods::{SLEEP, pod, restarts, shell, sleeper, uid};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

pub async fn body(suite: &mut Suite) -> Result<()> {
    let cluster = Cluster::start(suite.dir(), Extent::WithoutScheduler).await?;
    let lacking = cluster.join("lacking", 1, Kind::V2, json!({})).await?;
    let case = "a runtime that cannot give a pod users of its own is named, and the pod waits";
    suite.case(case, LIMIT * 2, refused(&cluster, &lacking)).await;
    if let Err(missing) = Part::Runc.available() {
        suite.leave_out("pods with users of their own", &missing);
        return Ok(());
    }
    let mut node = cluster.join("able", 2, Kind::V2WithRunc, json!({})).await?;
    let case = "root inside is nobody outside, volumes keep their owners, and no two pods share ids";
    suite.case(case, LIMIT * 2, own_users(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "ids outlast a killed agent, also where their record was cut, lost or another pod's";
    suite.case(case, LIMIT * 3, survive(&cluster, &mut node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "the files of an image that is a volume belong to root inside";
    suite.case(case, LIMIT, image_volume(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    match Part::Kubelet.available() {
        Ok(()) => {
            let kubelet = Part::Kubelet.program()?;
            let case = "a kubelet takes over and hands back, and ids stay whose they were";
            suite.case(case, LIMIT * 4, handed_over(&cluster, &mut node, &kubelet)).await;
            if node.agent.process_id().is_none() {
                node.agent.hand_over(&built::agent()?).await?;
            }
        }
        Err(missing) => suite.leave_out("a kubelet takes over", &missing),
    }
    cluster.reset(suite, &mut node).await;
    node.agent.check_alive()
}

async fn refused(cluster: &Cluster, node: &Node) -> Result<()> {
    let object = cluster.node_object(node.agent.node()).await?;
    let handlers = object.status.and_then(|s| s.runtime_handlers).unwrap_or_default();
    let able = |h: &k8s_openapi::api::core::v1::NodeRuntimeHandler| {
        h.features.as_ref().and_then(|f| f.user_namespaces) == Some(true)
    };
    let pods = cluster.pods();
    pods.create(own("wants", node, json!([sleeper("main")]))).await?;
    if handlers.iter().any(able) {
        // The machine's own runc is new enough: nothing is refused here.
        pods.wait_ready("wants", LIMIT).await?;
        return pods.delete("wants", LIMIT).await;
    }
    let words = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    until_true("an event says why", LIMIT, async || {
        let events = pods.events_about("wants").await?;
        let mut failed = events.iter().filter(|e| e.reason.as_deref() == Some("FailedCreatePodSandBox"));
        let said = |m: &String| m == &format!("Failed to create pod sandbox: {words}");
        Ok(failed.any(|e| e.message.as_ref().is_some_and(said)))
    })
    .await?;
    ensure!(node.runtime.sandboxes_of("wants").await?.is_empty(), "a sandbox was made");
    ensure!(keelson_tests::pods::phase(&pods.get("wants").await?) == "Pending");
    pods.delete("wants", LIMIT).await?;
    leftovers::wait_clean(node, LIMIT).await
}

/// A pod with users of its own.
fn own(name: &str, node: &Node, containers: Value) -> Value {
    let mut pod = pod(name, node.agent.node(), containers);
    pod["spec"]["hostUsers"] = json!(false);
    pod
}

async fn image_volume(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut main = sleeper("main");
    main["volumeMounts"] = json!([{"name": "tools", "mountPath": "/tools"}]);
    let mut with_image = own("with-image", node, json!([main]));
    with_image["spec"]["volumes"] =
        json!([{"name": "tools", "image": {"reference": BUSYBOX, "pullPolicy": "IfNotPresent"}}]);
    pods.create(with_image).await?;
    pods.wait_ready("with-image", LIMIT).await?;
    let (id, start) = mapped(node, "with-image", "main").await?;
    ensure!(start >= 65_536, "ids of the host itself are mapped, from {start} on");
    let owner = node.runtime.exec(&id, &["stat", "-c", "%u %g", "/tools/etc/passwd"]).await?;
    ensure!(owner == "0 0\n", "inside its owner is {owner:?}");
    pods.delete("with-image", LIMIT).await?;
    leftovers::wait_clean(node, LIMIT).await
}

async fn own_users(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let line = format!("echo done >/data/by-root; echo bye >/dev/termination-log; {SLEEP}");
    let mut main = shell("main", &line);
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    main["volumeMounts"] = json!([mount("data"), mount("memory"), mount("settings")]);
    let mut user = main.clone();
    user["name"] = json!("user");
    user["command"] = json!(["sh", "-c", format!("echo done >/data/by-user; {SLEEP}")]);
    user["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 2000});
    let mut first = own("first", node, json!([main, user]));
    first["spec"]["securityContext"] = json!({"fsGroup": 4000});
    first["metadata"]["annotations"] = json!({"note": "hello"});
    let items =
        json!([{"path": "note", "mode": 288, "fieldRef": {"fieldPath": "metadata.annotations['note']"}}]);
    first["spec"]["volumes"] = json!([
        {"name": "data", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "settings", "downwardAPI": {"items": items}},
    ]);
    pods.create(first).await?;
    pods.create(own("second", node, json!([sleeper("main")]))).await?;
    let made = pods.wait_ready("first", LIMIT).await?;
    let (id, start) = mapped(node, "first", "main").await?;
    ensure!(start >= 65_536, "ids of the host itself are mapped, from {start} on");
    let (_, of_user) = mapped(node, "first", "user").await?;
    ensure!(of_user == start, "its containers have different users: {start}, {of_user}");

    // Inside it is root, outside it is nobody.
    let status = fs::read_to_string(format!("/proc/{}/status", node.runtime.process_of(&id).await?))?;
    let outside = status.lines().find_map(|l| l.strip_prefix("Uid:")?.split_whitespace().next());
    ensure!(outside == Some(start.to_string().as_str()), "outside it is {outside:?}, not {start}");

    // What is written keeps its owner on disk, and what is there shows its owner inside.
    let inside = node.runtime.exec(
        &id,
        &["sh", "-c", "id -u; stat -c '%n %u %g' /data /data/by-root /data/by-user /memory /settings/note /etc/hosts; cat /settings/note"],
    );
    let inside = inside.await?;
    for line in [
        "0",
        "/data 0 4000",
        "/data/by-root 0 4000",
        "/data/by-user 1000 4000",
        "/memory 0 4000",
        "/settings/note 0 4000",
        "/etc/hosts 0 0",
        "hello",
    ] {
        ensure!(inside.lines().any(|l| l == line), "inside there is no {line:?}: {inside}");
    }
    let data = pod_dir(node, &uid(&made)).join("volumes/kubernetes.io~empty-dir/data");
    let on_disk = |name: &str| fs::metadata(data.join(name)).map(|m| (m.uid(), m.gid()));
    ensure!(on_disk("by-root")? == (0, 4000), "on disk it is {:?}", on_disk("by-root"));
    ensure!(on_disk("by-user")? == (1000, 4000), "on disk it is {:?}", on_disk("by-user"));

    let one = format!(r#"[{{"hostId":{start},"containerId":0,"length":65536}}]"#);
    let record = fs::read_to_string(pod_dir(node, &uid(&made)).join("userns"))?;
    ensure!(record == format!(r#"{{"uidMappings":{one},"gidMappings":{one}}}"#), "its record is {record}");

    pods.wait_ready("second", LIMIT).await?;
    let (_, other) = mapped(node, "second", "main").await?;
    ensure!(other.abs_diff(start) >= 65_536, "both have ids from {start} and {other} on");
    for name in ["first", "second"] {
        pods.delete(name, LIMIT).await?;
    }
    leftovers::wait_clean(node, LIMIT).await
}

async fn survive(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    const NAMES: [&str; 4] = ["whole", "cut", "lost", "copied"];
    let mut before = vec![];
    for name in NAMES {
        pods.create(own(name, node, json!([sleeper("main")]))).await?;
    }
    for name in NAMES {
        let ready = pods.wait_ready(name, LIMIT).await?;
        let (id, start) = mapped(node, name, "main").await?;
        before.push((name, uid(&ready), id, start));
    }
    let root = node.agent.root_dir();
    let record = |uid: &str| root.join("pods").join(uid).join("userns");
    let whole = fs::read(record(&before[0].1))?;
    node.agent.kill()?;
    fs::write(record(&before[1].1), &whole[..20])?;
    fs::remove_file(record(&before[2].1))?;
    fs::write(record(&before[3].1), &whole)?;
    node.agent.restart().await?;
    for (name, uid, id, start) in &before {
        let path = pod_dir(node, uid).join("userns");
        until_true(&format!("the record of {name} is right"), LIMIT, async || {
            Ok(fs::read_to_string(&path).is_ok_and(|r| r.contains(&format!("\"hostId\":{start},"))))
        })
        .await?;
        let (now, _) = mapped(node, name, "main").await?;
        ensure!(now == *id, "{name} was restarted");
    }
    let log = node.agent.log();
    for (name, uid, ..) in &before {
        let said =
            log.lines().filter(|l| l.contains("the record of a pod's ids") && l.contains(uid.as_str()));
        let expected = if *name == "whole" { 0 } else { 1 };
        ensure!(said.clone().count() == expected, "of {name} was said: {:?}", said.collect::<Vec<_>>());
    }

    // A container that starts again joins what it was.
    for (name, _, id, start) in &before {
        node.runtime.stop_container(id).await?;
        pods.wait(name, "it runs again", LIMIT, |p| {
            restarts(p, "main") == 1 && keelson_tests::pods::is_ready(p)
        })
        .await?;
        let (_, now) = mapped(node, name, "main").await?;
        ensure!(now == *start, "{name} had ids from {start} on and has them from {now} on");
    }
    for name in NAMES {
        pods.delete(name, LIMIT).await?;
    }
    leftovers::wait_clean(node, LIMIT).await
}

async fn handed_over(cluster: &Cluster, node: &mut Node, kubelet: &Path) -> Result<()> {
    let pods = cluster.pods();
    let mut before = BTreeMap::new();
    for name in ["ours", "theirs", "ours-again"] {
        if name == "theirs" {
            node.agent.stop().await?;
            node.agent.hand_over(kubelet).await?;
        }
        let given = async {
            pods.create(own(name, node, json!([sleeper("main")]))).await?;
            pods.wait_ready(name, LIMIT).await?;
            mapped(node, name, "main").await
        };
        let given = given.await;
        if name == "theirs" {
            node.agent.stop().await?;
            node.agent.hand_over(&built::agent()?).await?;
        }
        let (id, start) = given.with_context(|| name.to_owned())?;
        before.insert(name, (id, start));
        let mut starts: Vec<u32> = before.values().map(|(_, start)| *start).collect();
        starts.sort_unstable();
        ensure!(starts.is_sorted_by(|a, b| b - a >= 65536), "pods share ids: {before:?}");
        for (name, held) in &before {
            ensure!(mapped(node, name, "main").await? == *held, "{name} was restarted, or has other ids");
        }
    }
    for name in before.into_keys() {
        pods.delete(name, LIMIT).await?;
    }
    leftovers::wait_clean(node, LIMIT).await
}

fn pod_dir(node: &Node, uid: &str) -> PathBuf {
    node.agent.root_dir().join("pods").join(uid)
}

/// A running container of a pod, and the first id of the host that is its own.
async fn mapped(node: &Node, pod: &str, container: &str) -> Result<(String, u32)> {
    let seen = node.runtime.containers_of(pod).await?;
    let id = seen.into_iter().find(|c| c.name == container && c.running).map(|c| c.id);
    let id = id.with_context(|| format!("{container} of {pod} does not run"))?;
    let map = node.runtime.exec(&id, &["cat", "/proc/self/uid_map"]).await?;
    let gids = node.runtime.exec(&id, &["cat", "/proc/self/gid_map"]).await?;
    ensure!(map == gids, "users are {map:?}, groups {gids:?}");
    let words: Vec<&str> = map.split_whitespace().collect();
    let ["0", start, "65536"] = words[..] else { anyhow::bail!("its users are {map:?}") };
    Ok((id, start.parse()?))
}
