//! exec, attach, cp and debug, as a person at a terminal uses them.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::images::BUSYBOX;
use keelson_tests::kubectl::Kubectl;
use keelson_tests::pods::{pod, shell};
use keelson_tests::suite::{Suite, folder};
use keelson_tests::terminal::Terminal;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::ChildStdout;

use super::{LIMIT, POD};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &Node, protocol: &str, kubectl: &Kubectl) {
    let dir = suite.dir().to_owned();
    let named = |case: &str| format!("{case}, over {protocol}");
    suite.case(&named("exec returns output, errors and exit code"), LIMIT, exec(kubectl)).await;
    suite.case(&named("exec reads its input to the end"), LIMIT, input(kubectl)).await;
    suite.case(&named("exec on a terminal follows its size"), LIMIT, terminal(kubectl)).await;
    let name = format!("attached-{}", protocol.to_lowercase());
    suite
        .case(
            &named("attach is connected with a container until that exits"),
            LIMIT,
            attach(cluster, node, kubectl, &name),
        )
        .await;
    suite
        .case(&named("a container that dies ends its execs"), LIMIT, dying(cluster, node, kubectl, &name))
        .await;
    let copies = async {
        let dir = folder(&dir, &format!("copies-{protocol}"))?;
        copy(kubectl, &dir).await
    };
    suite.case(&named("cp brings a tree there and back"), LIMIT, copies).await;
    let guest = format!("guest-{}", protocol.to_lowercase());
    suite
        .case(&named("debug adds a container that can be used"), LIMIT, debug(cluster, kubectl, &guest))
        .await;
}

async fn exec(kubectl: &Kubectl) -> Result<()> {
    let line = "echo out; echo err >&2; exit 7";
    let mut command = kubectl.command()?;
    let out = command.args(["exec", POD, "-c", "main", "--", "sh", "-c", line]).output().await?;
    let (said, complained) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    ensure!(said == "out\n", "stdout is {said:?}");
    ensure!(complained.starts_with("err\n"), "stderr is {complained:?}");
    ensure!(out.status.code() == Some(7), "it ended with {}", out.status);
    Ok(())
}

async fn input(kubectl: &Kubectl) -> Result<()> {
    let mut command = kubectl.command()?;
    command.args(["exec", "-i", POD, "-c", "main", "--", "sh", "-c", "sha256sum; echo done"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no input")?;
    let writing = tokio::spawn(async move {
        let block: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
        for _ in 0..4 {
            stdin.write_all(&block).await?;
        }
        stdin.shutdown().await
    });
    let out = child.wait_with_output().await?;
    writing.await??;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let block: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    let expected = sha256(&block.repeat(4));
    ensure!(said == format!("{expected}  -\ndone\n"), "stdout is {said:?}, not {expected}: {}", out.status);
    Ok(())
}

async fn terminal(kubectl: &Kubectl) -> Result<()> {
    let mut command = kubectl.command_with_terminal()?;
    command.args(["exec", "-it", POD, "-c", "main", "--", "sh"]);
    let mut terminal = Terminal::start(command, 31, 101)?;
    // The size travels on a stream of its own and may come a moment after the first output.
    wait_for_size(&mut terminal, "31 101").await?;
    terminal.resize(44, 133)?;
    wait_for_size(&mut terminal, "44 133").await?;
    terminal.type_in("test -t 0 && echo is-a-$((40 + 2))-tty; exit 5\n")?;
    terminal.wait_for("is-a-42-tty", LIMIT).await?;
    let status = terminal.ended().await?;
    ensure!(status.code() == Some(5), "it ended with {status}");
    Ok(())
}

async fn wait_for_size(terminal: &mut Terminal, size: &str) -> Result<()> {
    let line = format!("until [ \"$(stty size)\" = '{size}' ]; do :; done; echo size-$((1 + 1))\n");
    terminal.type_in(&line)?;
    terminal.wait_for("size-2", Duration::from_secs(30)).await.with_context(|| format!("size {size}"))
}

/// Says something until it has been spoken to: containerd listens to the caller before the caller hears the container, so
/// an answer to a first word that was sent at once can be lost.
const WAITING: &str = "(until [ -e /spoken ]; do echo waiting; sleep 0.1; done)";

/// The container goes only when its last word has been heard: containerd lets go of both its outputs as soon as one ends.
async fn attach(cluster: &Cluster, node: &Node, kubectl: &Kubectl, name: &str) -> Result<()> {
    let listening = "while read line; do touch /spoken; [ $line = leave ] && exit 3; echo heard $line; done";
    let mut container = shell("main", &format!("{WAITING} & {listening}"));
    container["stdin"] = json!(true);
    let mut wanted = pod(name, node.agent.node(), json!([container]));
    wanted["spec"]["restartPolicy"] = json!("Never");
    let pods = cluster.pods();
    pods.create(wanted).await?;
    pods.wait_ready(name, LIMIT).await?;
    let mut command = kubectl.command()?;
    command.args(["attach", "-i", name]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (mut stdin, stdout) =
        (child.stdin.take().context("no input")?, child.stdout.take().context("no output")?);
    let mut lines = BufReader::new(stdout).lines();
    said(&mut lines, "waiting").await?;
    for word in ["one", "two", "end"] {
        stdin.write_all(format!("{word}\n").as_bytes()).await?;
        said(&mut lines, &format!("heard {word}")).await?;
    }
    stdin.write_all(b"leave\n").await?;
    ensure!(lines.next_line().await?.is_none(), "something was said after the end");
    child.wait().await?;
    pods.wait_phase(name, "Failed", LIMIT).await?;
    pods.delete(name, LIMIT).await
}

/// Until it says this. Meanwhile it may say that it waits, and kubectl what it does.
async fn said(lines: &mut Lines<BufReader<ChildStdout>>, wanted: &str) -> Result<()> {
    loop {
        let line = lines.next_line().await?.with_context(|| format!("it ended before it said {wanted:?}"))?;
        if line == wanted {
            return Ok(());
        }
        ensure!(!line.contains("heard"), "it said {line:?}, not {wanted:?}");
    }
}

async fn dying(cluster: &Cluster, node: &Node, kubectl: &Kubectl, name: &str) -> Result<()> {
    let name = format!("{name}-dying");
    let pods = cluster.pods();
    pods.create(pod(&name, node.agent.node(), json!([shell("main", "exec sleep 3600")]))).await?;
    pods.wait_ready(&name, LIMIT).await?;
    let mut command = kubectl.command()?;
    command.args(["exec", &name, "--", "sh", "-c", "echo begun; sleep 3600"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    ensure!(lines.next_line().await?.as_deref() == Some("begun"));
    pods.delete(&name, LIMIT).await?;
    let status = child.wait().await?;
    ensure!(!status.success(), "the exec ended well though its container was killed");
    Ok(())
}

async fn copy(kubectl: &Kubectl, dir: &std::path::Path) -> Result<()> {
    let from = folder(dir, "from")?;
    std::fs::create_dir_all(from.join("deep/er"))?;
    let large: Vec<u8> = (0..3 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(from.join("deep/er/large"), &large)?;
    std::fs::write(from.join("small"), "small\n")?;
    std::fs::write(from.join("empty"), "")?;
    let place = format!("{POD}:/tmp/copy-{}", dir.file_name().unwrap_or_default().to_string_lossy());
    kubectl.run(&["cp", &from.display().to_string(), &place, "-c", "main"]).await?;
    let back = dir.join("back");
    kubectl.run(&["cp", &place, &back.display().to_string(), "-c", "main"]).await?;
    ensure!(std::fs::read(back.join("deep/er/large"))? == large, "the large file is not what it was");
    ensure!(std::fs::read_to_string(back.join("small"))? == "small\n");
    ensure!(std::fs::read(back.join("empty"))?.is_empty());
    Ok(())
}

async fn debug(cluster: &Cluster, kubectl: &Kubectl, guest: &str) -> Result<()> {
    let image = format!("--image={BUSYBOX}");
    let mut command = kubectl.command()?;
    command.args([
        "debug",
        POD,
        "-i",
        "-c",
        guest,
        "--target=main",
        &image,
        "--image-pull-policy=IfNotPresent",
    ]);
    command.args([
        "--profile=general",
        "--",
        "sh",
        "-c",
        &format!("{WAITING} & read word; touch /spoken; echo guest heard $word; exec sleep 3600"),
    ]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let (mut stdin, stdout) =
        (child.stdin.take().context("no input")?, child.stdout.take().context("no output")?);
    let mut lines = BufReader::new(stdout).lines();
    said(&mut lines, "waiting").await?;
    stdin.write_all(b"hello\n").await?;
    said(&mut lines, "guest heard hello").await?;
    drop(child);
    // It shares the target's processes, and stays.
    let seen = kubectl.run(&["exec", POD, "-c", guest, "--", "ps"]).await?;
    ensure!(seen.contains("trap 'exit 0' TERM"), "the guest does not see the target's processes: {seen}");
    let pod = cluster.pods().get(POD).await?;
    let guests = pod.status.and_then(|s| s.ephemeral_container_statuses).unwrap_or_default();
    ensure!(guests.iter().any(|g| g.name == guest), "{guests:?}");
    kubectl.run(&["exec", POD, "-c", guest, "--", "sh", "-c", "kill -9 -1; true"]).await.ok();
    Ok(())
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
