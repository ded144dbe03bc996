//! Logs that are not what they should be.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result, bail, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::pods::{SLEEP, pod, shell};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::json;
use tokio::io::AsyncReadExt;

use super::{LIMIT, log_dir};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &mut Node) {
    suite
        .case(
            "logs: a long line and bytes that are no text come as they were written",
            LIMIT,
            bytes(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
    suite.case("logs: a link in a log's place shows nothing", LIMIT, link(cluster, node)).await;
    cluster.reset(suite, node).await;
    suite
        .case(
            &format!("logs: an entry of {} MiB costs the agent little memory", entry_mib()),
            LIMIT * 4,
            huge(cluster, node),
        )
        .await;
    cluster.reset(suite, node).await;
}

async fn bytes(cluster: &Cluster, node: &Node) -> Result<()> {
    let line = format!("head -c 100000 /dev/zero | tr '\\0' x; echo; printf 'a\\377\\000b\\n'; {SLEEP}");
    cluster.pods().create(pod("bytes", node.agent.node(), json!([shell("main", &line)]))).await?;
    cluster.pods().wait_ready("bytes", LIMIT).await?;
    let expected = [&vec![b'x'; 100_000][..], b"\na\xff\0b\n"].concat();
    until_true("both lines are there, unchanged", LIMIT / 4, async || {
        let mut child = cluster.kubectl.follow(&["logs", "bytes"])?;
        let mut shown = Vec::new();
        child.stdout.take().context("no output")?.read_to_end(&mut shown).await?;
        let end = &shown[shown.len().saturating_sub(20)..];
        ensure!(shown == expected, "{} bytes of {}, at the end {end:?}", shown.len(), expected.len());
        Ok(true)
    })
    .await?;
    cluster.pods().delete("bytes", LIMIT).await
}

async fn link(cluster: &Cluster, node: &Node) -> Result<()> {
    cluster
        .pods()
        .create(pod("linked", node.agent.node(), json!([shell("main", &format!("echo mine; {SLEEP}"))])))
        .await?;
    cluster.pods().wait_ready("linked", LIMIT).await?;
    let secret = node.agent.root_dir().join("secret");
    fs::write(&secret, "2026-01-02T03:04:05Z stdout F secret\n")?;
    let log = log_dir(cluster, node, "linked", "main").await?.join("0.log");
    fs::rename(&log, log.with_extension("kept"))?;
    symlink(&secret, &log)?;
    let answer = cluster.kubectl.run(&["logs", "linked"]).await;
    let refused = answer.as_ref().err().map(|e| e.to_string()).unwrap_or_default();
    ensure!(refused.contains("failed to open the log"), "answered {answer:?}");
    ensure!(!refused.contains("secret"), "{refused}");
    fs::remove_file(&log)?;
    fs::rename(log.with_extension("kept"), &log)?;
    until_true("its own log is shown again", LIMIT, async || {
        Ok(cluster.kubectl.run(&["logs", "linked"]).await? == "mine\n")
    })
    .await?;
    fs::remove_file(&secret)?;
    cluster.pods().delete("linked", LIMIT).await
}

/// A quarter of a GiB, or what KEELSON_ENTRY_MIB says.
fn entry_mib() -> u64 {
    std::env::var("KEELSON_ENTRY_MIB").ok().and_then(|n| n.parse().ok()).unwrap_or(256)
}

/// No runtime writes such an entry; whoever has got into one might.
async fn huge(cluster: &Cluster, node: &Node) -> Result<()> {
    cluster
        .pods()
        .create(pod("huge", node.agent.node(), json!([shell("main", &format!("echo begun; {SLEEP}"))])))
        .await?;
    cluster.pods().wait_ready("huge", LIMIT).await?;
    let log = log_dir(cluster, node, "huge", "main").await?.join("0.log");
    let process = node.agent.process_id().context("the agent is not running")?;
    let before = peak(process)?;
    // Followed, since such a log is soon rotated away from those who come later.
    let mut child = cluster.kubectl.follow(&["logs", "-f", "huge"])?;
    let mut out = child.stdout.take().context("no output")?;
    ensure!(out.read_u8().await? == b'b', "the container's own line comes first");
    let write = tokio::task::spawn_blocking(move || {
        let mut file = fs::File::options().append(true).open(&log)?;
        file.write_all(b"2026-01-02T03:04:05Z stdout F ")?;
        let block = vec![b'y'; 1 << 20];
        for _ in 0..entry_mib() {
            file.write_all(&block)?;
        }
        file.write_all(b"\n")
    });
    let (mut total, mut buffer) = (1u64, vec![0; 1 << 20]);
    while total < "begun\n".len() as u64 + (entry_mib() << 20) + 1 {
        match out.read(&mut buffer).await? {
            0 => bail!("the stream ended after {total} bytes"),
            n => total += n as u64,
        }
    }
    write.await??;
    let grown = peak(process)?.saturating_sub(before);
    ensure!(grown < 16 << 10, "the agent grew by {grown} KiB");
    cluster.pods().delete("huge", LIMIT).await
}

/// The most memory that a process has had, in KiB.
fn peak(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}
