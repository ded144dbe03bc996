//! Requests that no client would send, and crowds.

use std::time::Duration;

use anyhow::{Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::node_api::{Credentials, NodeApi};
use keelson_tests::suite::Suite;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{LIMIT, POD};

type Headers<'a> = &'a [(&'a str, &'a str)];

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &Node) {
    suite.case("malformed upgrades are refused and cost nothing", LIMIT, upgrades(cluster, node)).await;
    suite.case("a hundred execs at once are all served", LIMIT * 2, many(cluster, node)).await;
    suite.case("idle crowds do not keep kubectl out", LIMIT, crowd(cluster, node)).await;
}

async fn upgrades(cluster: &Cluster, node: &Node) -> Result<()> {
    let api = NodeApi::new(node.agent.api_port()?, &cluster.plane.ca_file())?;
    let admin = Credentials::pair(&cluster.plane.user_pair("hostile-admin", "root", &["system:masters"])?);
    let exec = format!("/exec/default/{POD}/main?command=id&output=1");
    let spdy: Headers = &[("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")];
    let cases: &[(&str, String, Headers, u16)] = &[
        ("no upgrade", exec.clone(), &[("Connection", "close")], 400),
        ("half an upgrade", exec.clone(), &[("Connection", "Upgrade")], 400),
        ("an unknown protocol", exec.clone(), &[("Connection", "Upgrade"), ("Upgrade", "h2c")], 400),
        (
            "a WebSocket without its key",
            exec.clone(),
            &[("Connection", "Upgrade"), ("Upgrade", "websocket")],
            400,
        ),
        (
            "a body",
            exec.clone(),
            &[("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("Content-Length", "9")],
            400,
        ),
        ("no streams", format!("/exec/default/{POD}/main?command=id"), spdy, 400),
        ("no command", format!("/exec/default/{POD}/main?output=1"), spdy, 400),
        ("an unknown container", format!("/exec/default/{POD}/none?command=id&output=1"), spdy, 404),
        ("an unknown pod", "/exec/default/none/main?command=id&output=1".into(), spdy, 404),
        ("another pod's uid", format!("/exec/default/{POD}/0000/main?command=id&output=1"), spdy, 404),
        ("attach to nothing", format!("/attach/default/{POD}/none?output=1"), spdy, 404),
        ("ports of nothing", "/portForward/default/none".into(), spdy, 404),
        (
            "a WebSocket port-forward without ports",
            format!("/portForward/default/{POD}"),
            &[("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Key", "x")],
            400,
        ),
    ];
    for (case, path, headers, expected) in cases {
        let (answer, _) = api.open(&admin, "POST", path, headers).await?;
        ensure!(answer.status == *expected, "{case}: {}", answer.text);
    }
    Ok(())
}

/// Each of them comes on a connection of its own.
async fn many(cluster: &Cluster, node: &Node) -> Result<()> {
    let api = NodeApi::new(node.agent.api_port()?, &cluster.plane.ca_file())?;
    let admin = Credentials::pair(&cluster.plane.user_pair("crowd-admin", "root", &["system:masters"])?);
    let run = format!("/run/default/{POD}/main?cmd=echo+served");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (api, admin, run) = (api.clone(), admin.clone(), run.clone());
        tasks.spawn(async move { api.post(&admin, &run).await });
    }
    while let Some(done) = tasks.join_next().await {
        let answer = done??;
        ensure!(answer.status == 200 && answer.text.contains("served"), "{}", answer.text);
    }
    Ok(())
}

async fn crowd(cluster: &Cluster, node: &Node) -> Result<()> {
    let port = node.agent.api_port()?;
    let mut silent = vec![];
    for _ in 0..800 {
        silent.push(TcpStream::connect(("127.0.0.1", port)).await?);
    }
    // Half a TLS hello, and something that is none.
    for (n, stream) in silent.iter_mut().enumerate() {
        let said: &[u8] = if n % 2 == 0 { &[0x16, 0x03, 0x01, 0x02] } else { b"GET / HTTP/1.1\r\n\r\n" };
        let _ = stream.write_all(said).await;
    }
    // The apiserver comes from the node's own address, not from loopback.
    let said = cluster.kubectl.run(&["exec", POD, "-c", "main", "--", "echo", "still", "served"]).await?;
    ensure!(said == "still served\n", "{said:?}");
    let pid = node.agent.process_id().unwrap_or_default();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    ensure!(open < 700, "the agent holds {open} descriptors");
    drop(silent);
    let api = NodeApi::new(port, &cluster.plane.ca_file())?;
    let served = async {
        // Its places come back as the crowd leaves.
        while api.get(&Credentials::default(), "/pods").await.map(|a| a.status).unwrap_or(0) != 401 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, served).await?;
    Ok(())
}
