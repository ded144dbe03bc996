//! port-forward, also under load.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use keelson_tests::kubectl::Kubectl;
use keelson_tests::suite::Suite;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{LIMIT, POD};

pub async fn run(suite: &mut Suite, kubectl: &Kubectl, protocol: &str) {
    let case = format!("200 connections through one port-forward, over {protocol}");
    suite.case(&case, LIMIT * 2, many(kubectl)).await;
}

async fn many(kubectl: &Kubectl) -> Result<()> {
    let mut command = kubectl.command()?;
    command.args(["port-forward", "--address=127.0.0.1", &format!("pod/{POD}"), ":8080"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let line = lines.next_line().await?.context("port-forward ended at once")?;
    let port: u16 = line
        .strip_prefix("Forwarding from 127.0.0.1:")
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .with_context(|| format!("port-forward said {line:?}"))?;
    // Its lines about handled connections must not fill the pipe.
    let draining = tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    ensure!(fetch(port).await?.contains("page"), "the first page is not the page");
    // All are open before the first one asks, so that they are there at once.
    let mut open = vec![];
    for _ in 0..200 {
        open.push(TcpStream::connect(("127.0.0.1", port)).await?);
    }
    let mut tasks = JoinSet::new();
    for stream in open {
        tasks.spawn(async move { tokio::time::timeout(Duration::from_secs(60), ask(stream)).await? });
    }
    let mut good = 0;
    while let Some(done) = tasks.join_next().await {
        ensure!(done??.contains("page"), "a page is not the page after {good} good ones");
        good += 1;
    }
    ensure!(good == 200);
    ensure!(fetch(port).await?.contains("page"), "after the crowd nobody is served");
    child.kill().await?;
    draining.abort();
    Ok(())
}

async fn fetch(port: u16) -> Result<String> {
    ask(TcpStream::connect(("127.0.0.1", port)).await?).await
}

async fn ask(mut stream: TcpStream) -> Result<String> {
    stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}
