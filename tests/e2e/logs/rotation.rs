//! Logs that are rotated while somebody reads them.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::pods::{pod, shell};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use super::{LIMIT, log_dir};

/// How many lines are written: a fifth of a million, or what KEELSON_LOG_LINES says.
pub fn lines() -> u64 {
    std::env::var("KEELSON_LOG_LINES").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000)
}

/// An entry is some 100 bytes long; this makes for about thirty files.
pub fn max_size(lines: u64) -> String {
    format!("{}Ki", lines * 100 / 30 / 1024)
}

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node, lines: u64) {
    let name = format!("logs: {lines} lines at full speed through our rotations, two followers");
    suite.case(&name, Duration::from_secs(240), full_speed(cluster, node, lines)).await;
    cluster.reset(suite, node).await;
    let name = "logs: somebody else rotates, by renaming and by emptying";
    suite.case(name, LIMIT * 2, foreign(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite.case("logs: a rotation that was cut off is made good", LIMIT, cut_off(cluster, node)).await;
    cluster.reset(suite, node).await;
}

/// Writes numbered lines in so many parts, each on request, and ends.
fn writer(name: &str, node: &Node, lines: u64, parts: u64, go: &std::path::Path) -> Value {
    let text = "0123456789".repeat(5);
    let count = format!("BEGIN {{ for (i = a + 1; i <= b; i++) print i, \"{text}\" }}");
    let size = lines / parts;
    let line = format!(
        "n=0; while test $n -lt {parts}; do until test -e /go/$n; do sleep 0.05; done; \
         awk -v a=$((n * {size})) -v b=$((n * {size} + {size})) '{count}'; n=$((n + 1)); done"
    );
    let mut main = shell("main", &line);
    main["volumeMounts"] = json!([{"name": "go", "mountPath": "/go"}]);
    let mut manifest = pod(name, node.agent.node(), json!([main]));
    manifest["spec"]["restartPolicy"] = json!("Never");
    manifest["spec"]["volumes"] = json!([{"name": "go", "hostPath": {"path": go}}]);
    manifest
}

/// Reads to the end and holds every line to its number.
async fn all_in_order(mut child: Child, lines: u64) -> Result<()> {
    let mut reader = BufReader::with_capacity(1 << 20, child.stdout.take().context("no output")?);
    let (mut line, mut expected) = (Vec::new(), 1u64);
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).await? == 0 {
            break;
        }
        let number =
            line.split(|b| *b == b' ').next().and_then(|n| std::str::from_utf8(n).ok()?.parse().ok());
        if number != Some(expected) {
            bail!("expected line {expected}, got {:?}", String::from_utf8_lossy(&line));
        }
        expected += 1;
    }
    ensure!(expected == lines + 1, "the stream ended after line {}", expected - 1);
    ensure!(child.wait().await?.success());
    Ok(())
}

async fn rotations(cluster: &Cluster, node: &Node) -> Result<u64> {
    let path = format!("/api/v1/nodes/{}/proxy/metrics", node.agent.node());
    let text = cluster.kubectl.run(&["get", "--raw", &path]).await?;
    let line = text.lines().find_map(|l| l.strip_prefix("keelson_log_rotations_total "));
    Ok(line.and_then(|n| n.parse().ok()).unwrap_or(0))
}

async fn full_speed(cluster: &Cluster, node: &Node, lines: u64) -> Result<()> {
    let go = node.agent.root_dir().join("go");
    fs::create_dir_all(&go)?;
    let pods = cluster.pods();
    // The whole million goes out in one; fewer lines wait for each other, so that there is something to rotate.
    let parts = if lines >= 1_000_000 { 1 } else { 5 };
    pods.create(writer("quick", node, lines, parts, &go)).await?;
    pods.wait_ready("quick", LIMIT).await?;
    let before = rotations(cluster, node).await?;
    let one = cluster.kubectl.follow(&["logs", "-f", "quick"])?;
    let two = cluster.kubectl.follow(&["logs", "-f", "quick"])?;
    until_true("both follow", LIMIT, async || {
        let path = format!("/api/v1/nodes/{}/proxy/metrics", node.agent.node());
        let text = cluster.kubectl.run(&["get", "--raw", &path]).await?;
        Ok(text.lines().any(|l| l == "keelson_log_streams 2"))
    })
    .await?;
    let began = std::time::Instant::now();
    let release =
        async {
            for part in 0..parts {
                let known = rotations(cluster, node).await?;
                fs::write(go.join(part.to_string()), "")?;
                if part + 1 < parts {
                    until_true("the log was rotated", LIMIT, async || {
                        Ok(rotations(cluster, node).await? > known)
                    })
                    .await?;
                }
            }
            anyhow::Ok(())
        };
    let (released, one, two) = tokio::join!(release, all_in_order(one, lines), all_in_order(two, lines));
    one.context("the first follower")?;
    two.context("the second follower")?;
    released?;
    let rotated = rotations(cluster, node).await? - before;
    println!("        {rotated} rotations, read in {:.1} s", began.elapsed().as_secs_f32());
    let least = if lines >= 1_000_000 { 20 } else { parts - 1 };
    ensure!(rotated >= least, "only {rotated} rotations");

    let dir = log_dir(cluster, node, "quick", "main").await?;
    let mut names: Vec<String> = fs::read_dir(&dir)?
        .map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, _>>()?;
    names.sort();
    ensure!((3..=4).contains(&names.len()) && names[0] == "0.log", "at most four files: {names:?}");
    let rotated = &names[1..];
    ensure!(rotated.iter().all(|n| n.starts_with("0.log.20") && n.as_bytes()[14] == b'-'), "{names:?}");
    // All but the last one, which may still have been written to.
    ensure!(rotated.iter().rev().skip(1).all(|n| n.ends_with(".gz")), "{names:?}");
    let packed = dir.join(&names[1]).display().to_string();
    let text = keelson_tests::process::output("gzip", &["-dc", &packed]).await?;
    // The runtime may cut a line where it goes over to the next file.
    let entry = |l: &str| l.contains(" stdout F ") || l.contains(" stdout P ");
    let odd = text.lines().find(|l| !entry(l));
    ensure!(text.lines().count() > 100 && odd.is_none(), "{packed}: {} lines, {odd:?}", text.lines().count());
    fs::remove_dir_all(&go)?;
    pods.delete("quick", LIMIT).await
}

async fn foreign(cluster: &Cluster, node: &Node) -> Result<()> {
    const LINES: u64 = 20_000;
    let go = node.agent.root_dir().join("go-foreign");
    fs::create_dir_all(&go)?;
    let pods = cluster.pods();
    let mut manifest = writer("foreign", node, LINES / 2, 1, &go);
    // A second half that waits until the log was emptied.
    let line = manifest["spec"]["containers"][0]["command"][2].as_str().context("no command")?.to_owned();
    let half = LINES / 2;
    let second = format!(
        "{line}; until test -e /go/more; do sleep 0.05; done; \
         awk 'BEGIN {{ for (i = {half} + 1; i <= {LINES}; i++) print i, \"x\" }}'"
    );
    manifest["spec"]["containers"][0]["command"][2] = json!(second);
    pods.create(manifest).await?;
    pods.wait_ready("foreign", LIMIT).await?;
    let id = node.runtime.containers_of("foreign").await?.first().context("no container")?.id.clone();
    let dir = log_dir(cluster, node, "foreign", "main").await?;
    let mut follower = cluster.kubectl.follow(&["logs", "-f", "foreign"])?;
    let mut reader = BufReader::new(follower.stdout.take().context("no output")?).lines();
    fs::write(go.join("0"), "")?;
    // As logrotate does it: 0.log.1 becomes 0.log.2, the log becomes 0.log.1.
    let mut expected = 1u64;
    for round in 0..4 {
        while expected < (round + 1) * half / 5 {
            let line = reader.next_line().await?.context("the stream ended")?;
            ensure!(line.split(' ').next() == Some(&expected.to_string()), "expected {expected}, got {line}");
            expected += 1;
        }
        if dir.join("0.log.1").exists() {
            fs::rename(dir.join("0.log.1"), dir.join("0.log.2"))?;
        }
        fs::rename(dir.join("0.log"), dir.join("0.log.1"))?;
        node.runtime.reopen_log(&id).await?;
    }
    while expected <= half {
        let line = reader.next_line().await?.context("the stream ended")?;
        ensure!(line.split(' ').next() == Some(&expected.to_string()), "expected {expected}, got {line}");
        expected += 1;
    }
    // Everything is read; now the log is emptied under its writer, which appends.
    fs::File::options().write(true).open(dir.join("0.log"))?.set_len(0)?;
    fs::write(go.join("more"), "")?;
    while expected <= LINES {
        let line = reader.next_line().await?.context("the stream ended")?;
        ensure!(line.split(' ').next() == Some(&expected.to_string()), "expected {expected}, got {line}");
        expected += 1;
    }
    ensure!(reader.next_line().await?.is_none(), "more came than was written");
    fs::remove_dir_all(&go)?;
    pods.delete("foreign", LIMIT).await
}

/// An agent that dies between moving the log aside and having it reopened leaves a runtime that writes to the old file.
async fn cut_off(cluster: &Cluster, node: &mut Node) -> Result<()> {
    let pods = cluster.pods();
    let line = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done";
    pods.create(pod("cut-off", node.agent.node(), json!([shell("main", line)]))).await?;
    pods.wait_ready("cut-off", LIMIT).await?;
    let dir = log_dir(cluster, node, "cut-off", "main").await?;
    until_true("it has written", LIMIT, async || Ok(fs::metadata(dir.join("0.log"))?.len() > 0)).await?;
    node.agent.kill()?;
    fs::rename(dir.join("0.log"), dir.join("0.log.20260102-030405"))?;
    fs::write(dir.join("0.log.20260102-030404.tmp"), "half an archive")?;
    node.agent.restart().await?;
    until_true("the log is there again and grows", LIMIT, async || {
        Ok(fs::metadata(dir.join("0.log")).is_ok_and(|m| m.len() > 0))
    })
    .await?;
    let old = fs::read_to_string(dir.join("0.log.20260102-030405"))?;
    let new = fs::read_to_string(dir.join("0.log"))?;
    let number = |line: Option<&str>| line.and_then(|l| l.rsplit(' ').next()?.parse::<u64>().ok());
    ensure!(number(old.lines().last()).map(|n| n + 1) == number(new.lines().next()), "{old}|{new}");
    pods.delete("cut-off", LIMIT).await
}
