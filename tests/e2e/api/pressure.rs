//! The node's ports under pressure: crowds that say nothing, readers that read nothing, a predecessor that has not gone yet.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use keelson_tests::agent::{Agent, Options};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::isolation::NODE_IP;
use keelson_tests::node_api::{Credentials, NodeApi};
use keelson_tests::suite::{Suite, folder};
use keelson_tests::wait::until;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use super::{LIMIT, POD};

const STRANGERS: usize = 1000;
const ADDRESSES: usize = 8;
const TIMES: usize = 50;
/// More than the agent has threads for work that blocks.
const READERS: usize = 520;

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &Node) {
    let crowd = crowd(cluster, node);
    suite.case("a thousand idle strangers from eight addresses keep nobody out", LIMIT * 4, crowd).await;
    let readers = readers(cluster, node);
    suite.case("readers of /logs that read nothing hold up nobody", LIMIT * 2, readers).await;
    let dir = suite.dir().to_owned();
    let held = async { held(&folder(&dir, "held")?, cluster).await };
    suite.case("ports that a predecessor still holds are waited for", LIMIT, held).await;
}

/// Connects as a stranger of the crowd, and again whenever the connection was closed.
async fn stranger(from: SocketAddr, to: SocketAddr) -> Result<()> {
    loop {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(from)?;
        if let Ok(mut stream) = socket.connect(to).await {
            let _ = stream.read(&mut [0]).await;
        }
    }
}

async fn crowd(cluster: &Cluster, node: &Node) -> Result<()> {
    let to = SocketAddr::from(([127, 0, 0, 1], node.agent.api_port()?));
    let mut crowd = JoinSet::new();
    for n in 0..STRANGERS {
        let last = u8::try_from(2 + n % ADDRESSES)?;
        crowd.spawn(stranger(SocketAddr::from(([127, 0, 0, last], 0)), to));
    }
    let pid = node.agent.process_id().unwrap_or_default();
    until("the crowd has come", LIMIT, async || {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        Ok((open >= STRANGERS).then_some(()))
    })
    .await?;
    for n in 0..TIMES {
        let said = cluster.kubectl.run(&["exec", POD, "-c", "main", "--", "echo", "served"]).await?;
        ensure!(said == "served\n", "exec {n}: {said:?}");
        let logs = cluster.kubectl.run(&["logs", POD, "-c", "web"]).await?;
        ensure!(logs.starts_with("serving\n"), "logs {n}: {logs:?}");
    }
    ensure!(crowd.len() == STRANGERS, "{} of the crowd are left", crowd.len());
    Ok(())
}

async fn readers(cluster: &Cluster, node: &Node) -> Result<()> {
    // Far more than the buffers of a connection take.
    std::fs::File::create("/var/log/long.log")?.set_len(64 << 20)?;
    let api = NodeApi::new(node.agent.api_port()?, &cluster.plane.ca_file())?;
    let admin = Credentials::pair(&cluster.plane.user_pair("stalled-admin", "root", &["system:masters"])?);
    let mut stalled = vec![];
    for n in 0..READERS {
        let (answer, stream) = api.open(&admin, "GET", "/logs/long.log", &[]).await?;
        ensure!(answer.status == 200, "reader {n}: {}", answer.text);
        stalled.push(stream);
    }
    // Each of these needs such a thread.
    let logs = cluster.kubectl.run(&["logs", POD, "-c", "web"]).await?;
    ensure!(logs.starts_with("serving\n"), "{logs:?}");
    let listed = api.get(&admin, "/logs/").await?;
    ensure!(listed.text.contains("long.log"), "{}", listed.text);
    // And whoever reads on gets all of it.
    let mut one = stalled.pop().context("there are readers")?;
    let mut read = 0;
    let mut buffer = vec![0; 1 << 20];
    while read < 64 << 20 {
        let got = one.read(&mut buffer).await?;
        ensure!(got > 0, "the log ended after {read} bytes");
        read += got;
    }
    drop(stalled);
    std::fs::remove_file("/var/log/long.log")?;
    Ok(())
}

async fn held(dir: &std::path::Path, cluster: &Cluster) -> Result<()> {
    let options = Options {
        node: "alone".into(),
        runtime_endpoint: "unix:///run/nobody-listens-here.sock".into(),
        kubeconfig: None,
        client_ca: Some(cluster.plane.ca_file()),
        serving: None,
        config: json!({}),
        flags: vec![],
    };
    let mut agent = Agent::start(dir, options).await?;
    agent.stop().await?;
    let (health, api) = (agent.healthz_port()?, agent.api_port()?);
    for (what, address, port) in [("healthz", "127.0.0.1", health), ("the API", "0.0.0.0", api)] {
        let predecessor = TcpListener::bind((address, port)).await?;
        agent.launch()?;
        until("the agent says that it waits", LIMIT, async || {
            agent.check_alive()?;
            Ok(agent.log().contains("the port is in use").then_some(()))
        })
        .await?;
        drop(predecessor);
        agent.wait_ready().await?;
        ensure!(TcpStream::connect((NODE_IP, api)).await.is_ok(), "{what}: the API is not served");
        ensure!(TcpStream::connect(("127.0.0.1", health)).await.is_ok(), "{what}: healthz is not served");
        agent.stop().await?;
    }
    // One that stays is named, and the agent gives up.
    let stays = TcpListener::bind(("127.0.0.1", health)).await?;
    agent.launch()?;
    until("the agent gives up", LIMIT, async || Ok(agent.check_alive().err())).await?;
    let port = stays.local_addr()?.to_string();
    ensure!(agent.log().contains(&port), "{}", agent.log());
    Ok(())
}
