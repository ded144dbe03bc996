//! kubectl logs with every flag.

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::node_api::{Credentials, NodeApi};
use keelson_tests::pods::{SLEEP, pod, restarts, shell, sleeper};
use keelson_tests::suite::Suite;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use super::LIMIT;

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    suite.case("logs: every flag shows what it says", LIMIT, every_flag(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("logs: every flag for several pods at once", LIMIT, several(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite
        .case("logs: a follower sees a line when it is written, and the end", LIMIT, follow(cluster, node))
        .await;
    cluster.reset(suite, node).await;
    suite
        .case(
            "logs: what cannot be shown is refused with the kubelet's messages",
            LIMIT,
            refusals(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
}

async fn every_flag(cluster: &Cluster, node: &Node) -> Result<()> {
    let (pods, kubectl) = (cluster.pods(), &cluster.kubectl);
    // Ends once: the first instance is the previous one then.
    let line = format!(
        "if test -e /flag/x; then echo first; echo second; echo third; sleep 1; echo fourth >&2; {SLEEP}; \
         else touch /flag/x; echo from before; exit 1; fi"
    );
    let mut main = shell("main", &line);
    main["volumeMounts"] = json!([{"name": "flag", "mountPath": "/flag"}]);
    let mut manifest =
        pod("flags", node.agent.node(), json!([main, shell("side", &format!("echo aside; {SLEEP}"))]));
    manifest["metadata"]["labels"] = json!({"app": "flags"});
    manifest["spec"]["volumes"] = json!([{"name": "flag", "emptyDir": {}}]);
    pods.create(manifest).await?;
    pods.wait("flags", "main was restarted", LIMIT, |p| restarts(p, "main") == 1).await?;
    let logs = async |args: &[&str]| kubectl.run(&[&["logs", "flags"], args].concat()).await;
    keelson_tests::wait::until_true("the last line is there", LIMIT, async || {
        Ok(logs(&["-c", "main"]).await?.ends_with("fourth\n") && logs(&["-c", "side"]).await? == "aside\n")
    })
    .await?;

    let all = "first\nsecond\nthird\nfourth\n";
    for (args, expected) in [
        (&["-c", "main"][..], all),
        (&[], all), // the first container is the default
        (&["-c", "side"], "aside\n"),
        (&["-c", "main", "--tail=2"], "third\nfourth\n"),
        (&["-c", "main", "--tail=0"], ""),
        (&["-c", "main", "--tail=100"], all),
        (&["-c", "main", "--limit-bytes=8"], "first\nse"),
        (&["-c", "main", "-p"], "from before\n"),
        (&["-c", "main", "--since=1h"], all),
        (&["-c", "main", "--since-time=2020-01-02T03:04:05Z"], all),
        (&["-c", "main", "--since-time=2099-01-02T03:04:05Z"], ""),
        (&["-c", "main", "--prefix", "--tail=1"], "[pod/flags/main] fourth\n"),
    ] {
        let shown = logs(args).await?;
        ensure!(shown == expected, "kubectl logs {args:?} shows {shown:?}, expected {expected:?}");
    }
    // In an order that kubectl does not promise.
    let mut both: Vec<String> = logs(&["--all-containers"]).await?.lines().map(str::to_owned).collect();
    both.sort();
    ensure!(both == ["aside", "first", "fourth", "second", "third"], "of all containers: {both:?}");
    let selected = kubectl.run(&["logs", "-l", "app=flags", "-c", "main", "--tail=1"]).await?;
    ensure!(selected == "fourth\n", "by label: {selected:?}");

    // The last line was written a second after the others, so its own time separates them.
    let stamped = logs(&["-c", "main", "--timestamps"]).await?;
    let times: Vec<&str> = stamped.lines().filter_map(|l| l.split_once(' ').map(|(t, _)| t)).collect();
    ensure!(times.len() == 4 && times.iter().all(|t| t.len() >= 30 && t.contains('.')), "{stamped}");
    let texts: String =
        stamped.lines().filter_map(|l| l.split_once(' ')).map(|(_, t)| format!("{t}\n")).collect();
    ensure!(texts == all, "{stamped}");
    // kubectl's flag carries whole seconds; the next one after the third line is past it.
    let since = format!("--since-time={}", times[3]);
    let late = logs(&["-c", "main", &since]).await?;
    ensure!(late.ends_with("fourth\n") && !late.contains("first"), "{since} shows {late:?}");

    // The apiserver asks for a single stream only behind a feature gate; the node can do it.
    let api = NodeApi::new(node.agent.api_port()?, &cluster.plane.ca_file())?;
    let who = Credentials::pair(&cluster.plane.kubelet_client());
    for (stream, expected) in [("Stderr", "fourth"), ("Stdout", "first\nsecond\nthird"), ("All", all.trim())]
    {
        let path = format!("/containerLogs/default/flags/main?stream={stream}");
        let answer = api.get(&who, &path).await?;
        let lines = answer.text.lines().filter(|l| expected.lines().any(|e| e == *l)).count();
        ensure!(lines == expected.lines().count(), "{stream} alone: {answer:?}");
        ensure!(
            stream == "All" || !answer.text.contains(if stream == "Stderr" { "first" } else { "fourth" })
        );
    }
    pods.delete("flags", LIMIT).await
}

async fn several(cluster: &Cluster, node: &Node) -> Result<()> {
    let (pods, kubectl) = (cluster.pods(), &cluster.kubectl);
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "many"},
        "spec": {"selector": {"app": "many"}, "ports": [{"port": 80}]}});
    kubectl.apply(&service.to_string()).await?;
    let names = ["many-0", "many-1", "many-2"];
    for name in names {
        let mut manifest =
            pod(name, node.agent.node(), json!([shell("main", &format!("echo of {name}; {SLEEP}"))]));
        manifest["metadata"]["labels"] = json!({"app": "many"});
        if name == "many-1" {
            manifest["spec"]["containers"][0]["image"] = json!("registry.invalid/absent:1");
        }
        pods.create(manifest).await?;
    }
    for name in ["many-0", "many-2"] {
        pods.wait_ready(name, LIMIT).await?;
        kubectl
            .run(&["logs", name, "--pod-running-timeout=20s", "--insecure-skip-tls-verify-backend"])
            .await?;
    }
    pods.wait_waiting("many-1", "ImagePullBackOff", LIMIT).await?;

    let good = "[pod/many-0/main] of many-0\n[pod/many-2/main] of many-2\n";
    let bad = "container \"main\" in pod \"many-1\" is waiting to start";
    let few = "you are attempting to follow 3 log streams, but maximum allowed concurrency is 2";
    for (args, succeeds, expected) in [
        (&["svc/many", "--all-pods"][..], false, bad),
        (&["svc/many", "--all-pods", "--ignore-errors"], true, bad),
        (&["svc/many", "--all-pods", "--ignore-errors"], true, good),
        (&["-l", "app=many", "--prefix", "--ignore-errors"], true, good),
        (&["-f", "-l", "app=many", "--max-log-requests=2"], false, few),
    ] {
        let out = kubectl.command()?.arg("logs").args(args).output().await?;
        let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        let complete = expected.lines().all(|line| said.contains(line));
        ensure!(
            out.status.success() == succeeds && complete,
            "kubectl logs {args:?}: {}, {said}",
            out.status
        );
    }
    kubectl.run(&["delete", "service", "many"]).await?;
    for name in names {
        pods.delete(name, LIMIT).await?;
    }
    Ok(())
}

async fn follow(cluster: &Cluster, node: &Node) -> Result<()> {
    let pods = cluster.pods();
    let shared = node.agent.root_dir().join("follow");
    std::fs::create_dir_all(&shared)?;
    let line = "echo begun; until test -e /go/one; do sleep 0.05; done; echo one; \
                until test -e /go/two; do sleep 0.05; done; echo last words";
    let mut main = shell("main", line);
    main["volumeMounts"] = json!([{"name": "go", "mountPath": "/go"}]);
    let mut manifest = pod("followed", node.agent.node(), json!([main]));
    manifest["spec"]["restartPolicy"] = json!("Never");
    manifest["spec"]["volumes"] = json!([{"name": "go", "hostPath": {"path": shared}}]);
    pods.create(manifest).await?;
    pods.wait_ready("followed", LIMIT).await?;
    let mut child = cluster.kubectl.follow(&["logs", "-f", "followed"])?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    ensure!(lines.next_line().await?.as_deref() == Some("begun"));
    // Nothing else is written before the line was seen: it comes by itself, not with the next one.
    std::fs::write(shared.join("one"), "")?;
    ensure!(lines.next_line().await?.as_deref() == Some("one"));
    std::fs::write(shared.join("two"), "")?;
    ensure!(lines.next_line().await?.as_deref() == Some("last words"));
    ensure!(lines.next_line().await?.is_none(), "the stream goes on after the container has ended");
    ensure!(child.wait().await?.success());
    let after = cluster.kubectl.run(&["logs", "-f", "followed"]).await?;
    ensure!(after == "begun\none\nlast words\n", "of a container that has ended: {after:?}");
    std::fs::remove_dir_all(&shared)?;
    pods.delete("followed", LIMIT).await
}

async fn refusals(cluster: &Cluster, node: &Node) -> Result<()> {
    let (pods, kubectl) = (cluster.pods(), &cluster.kubectl);
    let mut broken = shell("main", "true");
    broken["image"] = json!("registry.invalid/absent:1");
    pods.create(pod("broken", node.agent.node(), json!([broken]))).await?;
    pods.create(pod("calm", node.agent.node(), json!([sleeper("main")]))).await?;
    pods.wait_ready("calm", LIMIT).await?;
    pods.wait_waiting("broken", "ImagePullBackOff", LIMIT).await?;
    for (args, expected) in [
        (
            &["logs", "broken"][..],
            "container \"main\" in pod \"broken\" is waiting to start: trying and failing to pull image",
        ),
        (&["logs", "calm", "-p"], "previous terminated container \"main\" in pod \"calm\" not found"),
    ] {
        let mut child = kubectl.follow(args)?;
        let mut said = String::new();
        child.stderr.take().context("no output")?.read_to_string(&mut said).await?;
        ensure!(!child.wait().await?.success() && said.contains(expected), "kubectl {args:?} said {said:?}");
    }
    // Straight to the node, past the apiserver's own checks.
    let api = NodeApi::new(node.agent.api_port()?, &cluster.plane.ca_file())?;
    let who = Credentials::pair(&cluster.plane.kubelet_client());
    for (path, status, expected) in [
        ("absent/main", 404, "pod \"absent\" does not exist"),
        ("calm/other", 404, "container \"other\" not found in pod \"calm\""),
        ("calm/main?tailLines=-1", 422, "{\"message\": \"Invalid request.\"}"),
        ("calm/main?limitBytes=x", 400, "{\"message\": \"Unable to decode query.\"}"),
        ("calm/main?previous=true", 400, "previous terminated container \"main\" in pod \"calm\" not found"),
        ("calm/..%2f..%2f..%2fetc%2fpasswd", 400, ""),
        ("calm/%2e%2e", 400, ""),
    ] {
        let answer = api.get(&who, &format!("/containerLogs/default/{path}")).await?;
        ensure!(answer.status == status && answer.text.contains(expected), "{path}: {answer:?}");
    }
    pods.delete("calm", LIMIT).await?;
    pods.delete("broken", LIMIT).await
}
