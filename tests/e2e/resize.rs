//! Pods that get more or less while they run: what the kernel holds, what the status says, and that nothing is restarted for it,
//! over crashes, lost files, and a kubelet in between.

use std::collections::BTreeMap;
use std::fs;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use keelson_tests::cgroups;
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::containerd::Kind;
use keelson_tests::control_plane::Extent;
use keelson_tests::parts::Part;
use keelson_tests::pods::{is_ready, pod, restarts, shell, sleeper, uid};
use keelson_tests::runtime::Seen;
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use keelson_tests::{built, objects};
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const MI: u64 = 1 << 20;

pub async fn body(suite: &mut Suite) -> Result<()> {
    let cluster = Cluster::start(suite.dir(), Extent::WithoutScheduler).await?;
    let mut node = cluster.join("node", 1, Kind::V2, json!({})).await?;
    let case = "more and less arrive in the cgroups, and no container is restarted";
    suite.case(case, LIMIT * 2, in_place(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "no status counts a spec as observed before it says what became of its resize";
    suite.case(case, LIMIT * 2, judged_when_observed(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "the pod as a whole, and an init container that runs";
    suite.case(case, LIMIT * 2, whole_pod_and_init(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "a container whose policy asks for a restart is restarted, once, and no other";
    suite.case(case, LIMIT * 2, restarted_for_it(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "memory is not bounded below what is in use, and is once that has become less";
    suite.case(case, LIMIT * 2, below_use(&cluster, &node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "what there is no room for waits, over a killed agent too, and is granted when there is";
    suite.case(case, LIMIT * 3, put_off(&cluster, &mut node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "an agent that is killed in the midst of it finishes it";
    suite.case(case, LIMIT * 3, killed(&cluster, &mut node)).await;
    cluster.reset(suite, &mut node).await;
    let case = "files that are cut, lost or foreign restart nothing and grant nothing";
    suite.case(case, LIMIT * 3, lost_files(&cluster, &mut node)).await;
    cluster.reset(suite, &mut node).await;
    match Part::Kubelet.available() {
        Ok(()) => {
            let kubelet = Part::Kubelet.program()?;
            let case = "a kubelet takes over, resizes, and hands back, and nothing is restarted";
            suite.case(case, LIMIT * 4, handed_over(&cluster, &mut node, &kubelet)).await;
            if node.agent.process_id().is_none() {
                node.agent.hand_over(&built::agent()?).await?;
            }
        }
        Err(missing) => suite.leave_out("a kubelet takes over", &missing),
    }
    cluster.reset(suite, &mut node).await;
    Ok(())
}

/// CPU and memory, as request and limit in one.
fn size(size: &str) -> Value {
    let (cpu, memory) = size.split_once(' ').unwrap_or((size, ""));
    let list = json!({"cpu": cpu, "memory": memory});
    json!({"requests": list, "limits": list})
}

fn sized(name: &str, of: &str) -> Value {
    let mut container = sleeper(name);
    container["resources"] = size(of);
    container
}

/// Asks for other resources of containers, and returns the pod as the apiserver has it then.
async fn resize(cluster: &Cluster, name: &str, containers: &[(&str, &str)]) -> Result<Pod> {
    let containers = containers.iter().map(|(name, of)| json!({"name": name, "resources": size(of)}));
    patch(cluster, name, json!({"containers": containers.collect::<Vec<_>>()})).await
}

async fn patch(cluster: &Cluster, name: &str, spec: Value) -> Result<Pod> {
    let patch = Patch::Strategic(json!({"spec": spec}));
    let answer = cluster.pods().api.patch_subresource("resize", name, &PatchParams::default(), &patch).await;
    answer.with_context(|| format!("the apiserver refuses to have {name} resized"))
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// Waits until the status shows this spec, and nothing of a resize is left to do.
async fn settled(cluster: &Cluster, wanted: &Pod) -> Result<Pod> {
    let name = wanted.metadata.name.clone().unwrap_or_default();
    let generation = wanted.metadata.generation;
    let what = format!("generation {generation:?} is what it has");
    let done = |pod: &Pod| {
        pod.status.as_ref().and_then(|s| s.observed_generation) >= generation
            && condition(pod, "PodResizePending").is_none()
            && condition(pod, "PodResizeInProgress").is_none()
            && shown(pod) == asked(pod)
            && is_ready(pod)
    };
    cluster.pods().wait(&name, &what, LIMIT, done).await
}

type Resources = BTreeMap<String, Value>;

/// What the spec asks for, by container.
fn asked(pod: &Pod) -> Resources {
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    containers.map(|c| (c.name.clone(), json!(c.resources))).collect()
}

/// What the status says that they have.
fn shown(pod: &Pod) -> Resources {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    statuses.map(|c| (c.name.clone(), json!(c.resources))).collect()
}

/// Waits until the kernel holds these for a cgroup below the pod's own, or for that: bytes, and thousandths of a CPU.
async fn has(node: &Node, pod: &Pod, below: &str, memory: u64, cpu: u64) -> Result<()> {
    until_true("the kernel holds what was asked for", LIMIT, async || {
        let now = held(node, pod, below)?;
        ensure!(now == (memory, cpu), "{below:?} has {now:?}, not {:?}", (memory, cpu));
        Ok(true)
    })
    .await
}

fn held(node: &Node, pod: &Pod, below: &str) -> Result<(u64, u64)> {
    let class = match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Burstable") => "/burstable",
        _ => "",
    };
    let cgroup = format!("{}/kubepods{class}/pod{}/{below}", node.agent.cgroup_root(), uid(pod));
    let memory = cgroups::value(&cgroup, "memory", "memory.limit_in_bytes", "memory.max")?;
    let quota = cgroups::value(&cgroup, "cpu", "cpu.cfs_quota_us", "cpu.max")?;
    let quota = quota.split(' ').next().unwrap_or_default();
    // Of the usual period of 100 ms.
    Ok((memory.parse().context(memory)?, quota.parse::<u64>().context(quota.to_owned())? / 100))
}

async fn running(node: &Node) -> Result<Vec<Seen>> {
    Ok(node.runtime.containers().await?.into_iter().filter(|c| c.running).collect())
}

async fn id_of(node: &Node, pod: &str, container: &str) -> Result<String> {
    let all = node.runtime.containers_of(pod).await?;
    let found = all.into_iter().find(|c| c.name == container && c.running);
    Ok(found.with_context(|| format!("{container} of {pod} does not run"))?.id)
}

async fn in_place(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let containers = json!([sized("a", "100m 64Mi"), sized("b", "100m 64Mi")]);
    pods.create(pod("both", node.agent.node(), containers)).await?;
    pods.wait_ready("both", LIMIT).await?;
    let before = running(node).await?;
    for (a, b, [a_has, b_has, pod_has]) in [
        ("300m 128Mi", "100m 64Mi", [(128, 300), (64, 100), (192, 400)]),
        ("50m 32Mi", "100m 64Mi", [(32, 50), (64, 100), (96, 150)]),
        // One gives to the other, and the pod stays as it is.
        ("100m 64Mi", "50m 32Mi", [(64, 100), (32, 50), (96, 150)]),
    ] {
        let wanted = resize(cluster, "both", &[("a", a), ("b", b)]).await?;
        let done = settled(cluster, &wanted).await?;
        for (container, (memory, cpu)) in [("a", a_has), ("b", b_has)] {
            has(node, &done, &id_of(node, "both", container).await?, memory * MI, cpu).await?;
        }
        has(node, &done, "", pod_has.0 * MI, pod_has.1).await?;
        let status = done.status.unwrap_or_default();
        let allocated = status.container_statuses.iter().flatten().map(|c| json!(c.allocated_resources));
        let requests = done.spec.iter().flat_map(|s| &s.containers);
        let requests = requests.map(|c| json!(c.resources.as_ref().and_then(|r| r.requests.as_ref())));
        ensure!(allocated.eq(requests), "allocatedResources are {:?}", status.container_statuses);
    }
    ensure!(running(node).await? == before, "a container was restarted: {:?}", running(node).await?);
    let reasons = pods.event_reasons("both").await?;
    for reason in ["ResizeStarted", "ResizeCompleted"] {
        ensure!(reasons.iter().filter(|r| *r == reason).count() == 3, "events are {reasons:?}");
    }
    let metrics = cluster.kubectl.run(&["get", "--raw", "/api/v1/nodes/node/proxy/metrics"]).await?;
    for line in [
        r#"kubelet_container_requested_resizes_total{resource="memory",requirement="limits",operation="increase"} 2"#,
        r#"kubelet_pod_resize_duration_milliseconds_count{success="true"} 3"#,
        "kubelet_pod_in_progress_resizes 0",
        r#"kubelet_pod_pending_resizes{reason="deferred"} 0"#,
    ] {
        ensure!(metrics.lines().any(|l| l == line), "no {line} in {metrics}");
    }
    pods.delete("both", LIMIT).await
}

/// Who resizes a pod waits for its generation to be observed, and then for the conditions to be gone.
async fn judged_when_observed(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    pods.create(pod("watched", node.agent.node(), json!([sized("main", "100m 64Mi")]))).await?;
    pods.wait_ready("watched", LIMIT).await?;
    let only = watcher::Config::default().fields("metadata.name=watched");
    let mut seen = pin!(watcher(pods.api.clone(), only).touched_objects());
    let watched = async {
        while let Some(now) = seen.try_next().await? {
            let observed = now.status.as_ref().and_then(|s| s.observed_generation);
            let nothing_left =
                ["PodResizePending", "PodResizeInProgress"].map(|kind| condition(&now, kind)) == [None; 2];
            let told = observed < now.metadata.generation || !nothing_left || shown(&now) == asked(&now);
            ensure!(told, "generation {observed:?} is observed, and this is all: {:?}", now.status);
        }
        anyhow::bail!("the watch has ended")
    };
    let resized = async {
        for round in 0..40 {
            let of = if round % 2 == 0 { "200m 96Mi" } else { "100m 64Mi" };
            settled(cluster, &resize(cluster, "watched", &[("main", of)]).await?).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        wrong = watched => wrong?,
        done = resized => done?,
    }
    pods.delete("watched", LIMIT).await
}

async fn whole_pod_and_init(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut whole = pod("whole", node.agent.node(), json!([sleeper("main")]));
    whole["spec"]["resources"] = size("200m 64Mi");
    pods.create(whole).await?;
    let ready = pods.wait_ready("whole", LIMIT).await?;
    has(node, &ready, "", 64 * MI, 200).await?;
    let before = running(node).await?;
    let wanted = patch(cluster, "whole", json!({"resources": size("300m 96Mi")})).await?;
    let what = "the pod has more";
    let done = pods.wait("whole", what, LIMIT, |p| {
        let resources = p.status.as_ref().and_then(|s| s.resources.as_ref());
        json!(resources) == json!(wanted.spec.as_ref().and_then(|s| s.resources.as_ref()))
            && condition(p, "PodResizeInProgress").is_none()
    });
    let done = done.await?;
    has(node, &done, "", 96 * MI, 300).await?;
    ensure!(running(node).await? == before, "a container was restarted");
    pods.delete("whole", LIMIT).await?;

    let mut first = shell("first", "until [ -e /go/on ]; do sleep 1; done");
    first["resources"] = size("50m 32Mi");
    first["volumeMounts"] = json!([{"name": "go", "mountPath": "/go"}]);
    let mut starting = pod("starting", node.agent.node(), json!([sized("main", "50m 32Mi")]));
    starting["spec"]["initContainers"] = json!([first]);
    starting["spec"]["volumes"] = json!([{"name": "go", "emptyDir": {}}]);
    pods.create(starting).await?;
    let runs = |p: &Pod| {
        let mut all = p.status.iter().flat_map(|s| s.init_container_statuses.iter().flatten());
        all.any(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()))
    };
    let now = pods.wait("starting", "its init container runs", LIMIT, runs).await?;
    let id = id_of(node, "starting", "first").await?;
    let inits = json!({"initContainers": [{"name": "first", "resources": size("100m 64Mi")}]});
    let wanted = patch(cluster, "starting", inits).await?;
    has(node, &now, &id, 64 * MI, 100).await?;
    has(node, &now, "", 64 * MI, 100).await?;
    ensure!(id_of(node, "starting", "first").await? == id, "the init container was restarted");
    node.runtime.exec(&id, &["touch", "/go/on"]).await?;
    let done = settled(cluster, &wanted).await?;
    has(node, &done, &id_of(node, "starting", "main").await?, 32 * MI, 50).await?;
    pods.delete("starting", LIMIT).await
}

async fn restarted_for_it(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut picky = sized("picky", "50m 32Mi");
    picky["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let mut wanted = pod("picky", node.agent.node(), json!([picky, sized("other", "50m 32Mi")]));
    // It ends well, and is started again all the same.
    wanted["spec"]["restartPolicy"] = json!("OnFailure");
    pods.create(wanted).await?;
    pods.wait_ready("picky", LIMIT).await?;
    let before = (id_of(node, "picky", "picky").await?, id_of(node, "picky", "other").await?);
    let wanted = resize(cluster, "picky", &[("picky", "100m 32Mi")]).await?;
    let done = settled(cluster, &wanted).await?;
    ensure!(id_of(node, "picky", "picky").await? == before.0, "restarted for its CPU");
    has(node, &done, &before.0, 32 * MI, 100).await?;
    let wanted = resize(cluster, "picky", &[("picky", "100m 64Mi"), ("other", "50m 64Mi")]).await?;
    let done = settled(cluster, &wanted).await?;
    ensure!((restarts(&done, "picky"), restarts(&done, "other")) == (1, 0), "it was restarted otherwise");
    let id = id_of(node, "picky", "picky").await?;
    ensure!(id != before.0 && id_of(node, "picky", "other").await? == before.1, "another was restarted");
    has(node, &done, &id, 64 * MI, 100).await?;
    has(node, &done, &before.1, 64 * MI, 50).await?;
    has(node, &done, "", 128 * MI, 150).await?;
    pods.delete("picky", LIMIT).await
}

async fn below_use(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let mut full = sized("main", "50m 96Mi");
    full["volumeMounts"] = json!([{"name": "memory", "mountPath": "/memory"}]);
    let mut wanted = pod("full", node.agent.node(), json!([full]));
    wanted["spec"]["volumes"] = json!([{"name": "memory", "emptyDir": {"medium": "Memory"}}]);
    pods.create(wanted).await?;
    let ready = pods.wait_ready("full", LIMIT).await?;
    let id = id_of(node, "full", "main").await?;
    node.runtime.exec(&id, &["dd", "if=/dev/zero", "of=/memory/file", "bs=1M", "count=48"]).await?;
    let wanted = resize(cluster, "full", &[("main", "50m 32Mi")]).await?;
    let stuck =
        |p: &Pod| condition(p, "PodResizeInProgress").is_some_and(|c| c.reason.as_deref() == Some("Error"));
    let now = pods.wait("full", "its resize fails", LIMIT, stuck).await?;
    let said = condition(&now, "PodResizeInProgress").and_then(|c| c.message.clone()).unwrap_or_default();
    for words in
        ["cannot decrease memory limits: [", "pod memory limit (33554432) below", "container \"main\""]
    {
        ensure!(said.contains(words), "it says {said:?}");
    }
    ensure!(held(node, &ready, &id)? == (96 * MI, 50), "it was bounded all the same");
    node.agent.why("full").await?["now"]
        .as_array()
        .and_then(|all| {
            all.iter().find(|w| w["what"].as_str().is_some_and(|w| w.contains("its resize failed")))
        })
        .context("`keelson why` does not name it")?;
    node.runtime.exec(&id, &["rm", "/memory/file"]).await?;
    let done = settled(cluster, &wanted).await?;
    has(node, &done, &id, 32 * MI, 50).await?;
    let reasons = pods.event_reasons("full").await?;
    ensure!(reasons.iter().any(|r| r == "ResizeError"), "events are {reasons:?}");
    pods.delete("full", LIMIT).await
}

/// Thousandths of a CPU that pods may have.
async fn allocatable(cluster: &Cluster, node: &Node) -> Result<u64> {
    let status = cluster.node_object(node.agent.node()).await?.status;
    let cpu = status.and_then(|s| s.allocatable).and_then(|a| a.get("cpu").map(|q| q.0.clone()));
    let cpu = cpu.context("no allocatable CPU")?;
    match cpu.strip_suffix('m') {
        Some(milli) => Ok(milli.parse()?),
        None => Ok(cpu.parse::<u64>()? * 1000),
    }
}

/// A pod that leaves `left` thousandths, with which only those who ask for so much can grow.
async fn crowd(cluster: &Cluster, node: &Node, left: u64) -> Result<()> {
    let cpu = allocatable(cluster, node).await? - left;
    let mut container = sleeper("main");
    container["resources"] = json!({"requests": {"cpu": format!("{cpu}m")}});
    cluster.pods().create(pod("crowd", node.agent.node(), json!([container]))).await?;
    cluster.pods().wait_ready("crowd", LIMIT).await.map(drop)
}

async fn wait_deferred(cluster: &Cluster, name: &str) -> Result<Pod> {
    let deferred =
        |p: &Pod| condition(p, "PodResizePending").is_some_and(|c| c.reason.as_deref() == Some("Deferred"));
    cluster.pods().wait(name, "its resize is put off", LIMIT, deferred).await
}

async fn put_off(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    pods.create(pod("wants", node.agent.node(), json!([sized("main", "100m 32Mi")]))).await?;
    pods.wait_ready("wants", LIMIT).await?;
    crowd(cluster, node, 200).await?;
    let wanted = resize(cluster, "wants", &[("main", "300m 64Mi")]).await?;
    let now = wait_deferred(cluster, "wants").await?;
    let said = condition(&now, "PodResizePending").and_then(|c| c.message.clone()).unwrap_or_default();
    ensure!(said.starts_with("Node didn't have enough resource: cpu, requested: 300"), "it says {said:?}");
    let why = node.agent.why("wants").await?;
    let waits = why["now"].as_array().into_iter().flatten().filter_map(|w| w["what"].as_str());
    ensure!(waits.clone().any(|w| w.starts_with("its resize is not granted (Deferred)")), "{:#}", why["now"]);
    let id = id_of(node, "wants", "main").await?;
    ensure!(held(node, &now, &id)? == (32 * MI, 100), "it has got what there is no room for");

    node.agent.kill()?;
    node.agent.restart().await?;
    // What is started again is started with what was granted.
    node.runtime.stop_container(&id).await?;
    let again = |p: &Pod| restarts(p, "main") == 1 && is_ready(p);
    let now = pods.wait("wants", "it runs again", LIMIT, again).await?;
    ensure!(condition(&now, "PodResizePending").is_some(), "the resize is forgotten: {:?}", now.status);
    let id = id_of(node, "wants", "main").await?;
    has(node, &now, &id, 32 * MI, 100).await?;

    pods.delete("crowd", LIMIT).await?;
    let done = settled(cluster, &wanted).await?;
    ensure!(restarts(&done, "main") == 1 && id_of(node, "wants", "main").await? == id, "it was restarted");
    has(node, &done, &id, 64 * MI, 300).await?;
    let reasons = pods.event_reasons("wants").await?;
    for reason in ["ResizeDeferred", "ResizeStarted", "ResizeCompleted"] {
        ensure!(reasons.iter().any(|r| r == reason), "no {reason} among {reasons:?}");
    }
    pods.delete("wants", LIMIT).await
}

async fn killed(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    let containers = json!([sized("a", "100m 64Mi"), sized("b", "100m 64Mi")]);
    pods.create(pod("both", node.agent.node(), containers)).await?;
    pods.wait_ready("both", LIMIT).await?;
    let before = running(node).await?;
    for round in 0..12u64 {
        let (of, has_each) = if round % 2 == 0 { ("200m 96Mi", (96, 200)) } else { ("50m 32Mi", (32, 50)) };
        let wanted = resize(cluster, "both", &[("a", of), ("b", of)]).await?;
        // At another moment of it each time, before it is seen too.
        tokio::time::sleep(Duration::from_millis(round * 8)).await;
        node.agent.kill()?;
        node.agent.restart().await?;
        let done = settled(cluster, &wanted).await.with_context(|| format!("round {round}"))?;
        let (memory, cpu) = has_each;
        for container in ["a", "b"] {
            has(node, &done, &id_of(node, "both", container).await?, memory * MI, cpu).await?;
        }
        has(node, &done, "", 2 * memory * MI, 2 * cpu).await?;
    }
    ensure!(running(node).await? == before, "a container was restarted");
    pods.delete("both", LIMIT).await
}

const FILES: [&str; 2] = ["allocated_pods_state", "actuated_pods_state"];
const FOUND_OUT: &str = "what pods were granted will be found out from what runs";

async fn lost_files(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    for name in ["has", "wants"] {
        pods.create(pod(name, node.agent.node(), json!([sized("main", "100m 32Mi")]))).await?;
        pods.wait_ready(name, LIMIT).await?;
    }
    let wanted = resize(cluster, "has", &[("main", "150m 64Mi")]).await?;
    settled(cluster, &wanted).await?;
    crowd(cluster, node, 300).await?;
    resize(cluster, "wants", &[("main", "300m 64Mi")]).await?;
    wait_deferred(cluster, "wants").await?;
    let before = running(node).await?;
    let files = FILES.map(|name| node.agent.root_dir().join(name));
    let good = files.each_ref().map(|file| fs::read_to_string(file).unwrap_or_default());
    let foreign = r#"{"data":"{\"entries\":{}}","checksum":1}"#;
    let cut = |text: &String| text[..text.len() / 2].to_owned();
    for (what, content) in [
        ("cut", Some(good.each_ref().map(cut))),
        ("foreign", Some([foreign.to_owned(), foreign.to_owned()])),
        ("empty", Some([String::new(), String::new()])),
        ("lost", None),
    ] {
        node.agent.kill()?;
        for (index, file) in files.iter().enumerate() {
            match &content {
                Some(texts) => fs::write(file, &texts[index])?,
                None => fs::remove_file(file)?,
            }
        }
        node.agent.restart().await?;
        until_true(&format!("after {what} files they are whole again"), LIMIT, async || {
            let now = files.each_ref().map(|file| fs::read_to_string(file).unwrap_or_default());
            ensure!(now == good, "they are {now:?}, not {good:?}");
            Ok(true)
        })
        .await?;
        let said = node.agent.log().lines().filter(|l| l.contains(FOUND_OUT)).count();
        ensure!(said == if content.is_some() { 2 } else { 0 }, "of {what} files it says {said} times");
        ensure!(running(node).await? == before, "{what} files restart a container");
        let now = wait_deferred(cluster, "wants").await?;
        ensure!(held(node, &now, &id_of(node, "wants", "main").await?)? == (32 * MI, 100), "{what}: granted");
        let now = pods.get("has").await?;
        ensure!(held(node, &now, &id_of(node, "has", "main").await?)? == (64 * MI, 150), "{what}: changed");
    }
    for name in ["crowd", "wants", "has"] {
        pods.delete(name, LIMIT).await?;
    }
    Ok(())
}

async fn handed_over(cluster: &Cluster, node: &mut Node, kubelet: &std::path::Path) -> Result<()> {
    let pods = cluster.pods();
    for name in ["has", "wants"] {
        pods.create(pod(name, node.agent.node(), json!([sized("main", "100m 32Mi")]))).await?;
        pods.wait_ready(name, LIMIT).await?;
    }
    let wanted = resize(cluster, "has", &[("main", "150m 64Mi")]).await?;
    settled(cluster, &wanted).await?;
    crowd(cluster, node, 300).await?;
    let waits = resize(cluster, "wants", &[("main", "300m 64Mi")]).await?;
    wait_deferred(cluster, "wants").await?;
    let before = running(node).await?;
    let files = FILES.map(|name| node.agent.root_dir().join(name));

    node.agent.stop().await?;
    let ours = files.each_ref().map(|file| fs::read_to_string(file).unwrap_or_default());
    node.agent.hand_over(kubelet).await?;
    let theirs = async {
        // One of its own, which it starts when it has looked at the others.
        pods.create(pod("guest", node.agent.node(), json!([sleeper("main")]))).await?;
        pods.wait_ready("guest", LIMIT).await?;
        ensure!(id_of(node, "wants", "main").await.is_ok(), "what waited was ended");
        let now = wait_deferred(cluster, "wants").await?;
        ensure!(held(node, &now, &id_of(node, "wants", "main").await?)? == (32 * MI, 100), "it was granted");
        let read = fs::read_to_string(&files[0])?;
        ensure!(
            entry(&read, &uid(&now))? == entry(&ours[0], &uid(&now))?,
            "the kubelet reads {read} of {}",
            ours[0]
        );
        let wanted = resize(cluster, "has", &[("main", "50m 48Mi")]).await?;
        let done = settled(cluster, &wanted).await?;
        has(node, &done, &id_of(node, "has", "main").await?, 48 * MI, 50).await?;
        pods.delete("guest", LIMIT).await
    }
    .await;
    node.agent.stop().await?;
    node.agent.hand_over(&built::agent()?).await?;
    theirs.context("with a kubelet in charge")?;

    ensure!(!node.agent.log().contains(FOUND_OUT), "what the kubelet has written is not understood");
    ensure!(running(node).await? == before, "a container was restarted");
    wait_deferred(cluster, "wants").await?;
    let wanted = resize(cluster, "has", &[("main", "100m 96Mi")]).await?;
    let done = settled(cluster, &wanted).await?;
    has(node, &done, &id_of(node, "has", "main").await?, 96 * MI, 100).await?;
    pods.delete("crowd", LIMIT).await?;
    let done = settled(cluster, &waits).await?;
    has(node, &done, &id_of(node, "wants", "main").await?, 64 * MI, 300).await?;
    let left: Vec<_> = before.into_iter().filter(|c| c.pod != "crowd").collect();
    ensure!(running(node).await? == left, "a container was restarted");
    for name in ["wants", "has"] {
        pods.delete(name, LIMIT).await?;
        objects::wait_gone(&pods.api, name, None, LIMIT).await?;
    }
    Ok(())
}

/// What a file of either agent says of a pod.
fn entry(file: &str, uid: &str) -> Result<Value> {
    let file: Value = serde_json::from_str(file)?;
    let data: Value = serde_json::from_str(file["data"].as_str().context("no data")?)?;
    let entry = data["entries"].get(uid).cloned();
    entry.with_context(|| format!("{uid} is not in {data}"))
}
