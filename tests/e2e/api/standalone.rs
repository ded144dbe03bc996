//! A node without an apiserver: closed by default, open only to those whom its configuration names.

use anyhow::{Result, ensure};
use keelson_tests::agent::{Agent, Options};
use keelson_tests::cluster::Cluster;
use keelson_tests::isolation::NODE_IP;
use keelson_tests::node_api::{Credentials, NodeApi};
use keelson_tests::suite::{Suite, folder};
use serde_json::json;
use tokio::net::TcpStream;

use super::LIMIT;

pub async fn run(suite: &mut Suite, cluster: &Cluster) {
    let dir = suite.dir().to_owned();
    let closed = async { closed(&folder(&dir, "alone-closed")?).await };
    suite.case("a standalone node serves nobody by default", LIMIT, closed).await;
    let opened = async { opened(&folder(&dir, "alone-open")?, cluster).await };
    suite
        .case("a standalone node serves those with a certificate where that is configured", LIMIT, opened)
        .await;
}

/// The API needs no runtime to refuse.
fn options(client_ca: Option<std::path::PathBuf>) -> Options {
    Options {
        node: "alone".into(),
        runtime_endpoint: "unix:///run/nobody-listens-here.sock".into(),
        kubeconfig: None,
        client_ca,
        serving: None,
        config: json!({}),
        flags: vec![],
    }
}

async fn closed(dir: &std::path::Path) -> Result<()> {
    let agent = Agent::start(dir, options(None)).await?;
    ensure!(agent.log().contains("the node's API is not served"), "the log does not say so: {}", agent.log());
    let port = agent.api_port()?;
    // It would have been bound before the agent said that it is ready.
    for host in [NODE_IP, "127.0.0.1"] {
        ensure!(TcpStream::connect((host, port)).await.is_err(), "somebody listens on {host}:{port}");
    }
    Ok(())
}

async fn opened(dir: &std::path::Path, cluster: &Cluster) -> Result<()> {
    let agent = Agent::start(dir, options(Some(cluster.plane.ca_file()))).await?;
    let certificate = agent.root_dir().join("pki/kubelet.crt");
    ensure!(certificate.exists(), "there is no self-signed certificate");
    let api = NodeApi::at(NODE_IP, agent.api_port()?, &certificate)?;
    let known = Credentials::pair(&cluster.plane.user_pair("alone-user", "anybody", &[])?);
    for (who, credentials, expected) in [
        ("nobody", Credentials::default(), 401),
        ("a token", Credentials::token("x.y.z"), 401),
        ("known", known, 200),
    ] {
        let answer = api.get(&credentials, "/pods").await?;
        ensure!(answer.status == expected, "{who}: {}", answer.text);
    }
    Ok(())
}
