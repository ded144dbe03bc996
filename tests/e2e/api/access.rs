//! Every path, by callers without, with wrong, with other and with the right credentials, against the table of what must
//! come of it.

use anyhow::{Result, ensure};
use keelson_tests::cluster::{Cluster, Node};
use keelson_tests::node_api::{Credentials, NodeApi};
use keelson_tests::suite::{Suite, folder};
use keelson_tests::wait::until_true;

use super::{LIMIT, POD};

pub async fn run(suite: &mut Suite, cluster: &Cluster, node: &Node) {
    let dir = suite.dir().to_owned();
    let strangers = async {
        let other = keelson_tests::certs::Authority::new(&folder(&dir, "other-authority")?)?;
        let forged = other.pair("forged", "admin", &["system:masters"], &[])?;
        strangers(cluster, node, &Credentials::pair(&forged)).await
    };
    suite.case("strangers are refused everywhere", LIMIT, strangers).await;
    suite.case("rights are asked for, path by path", LIMIT * 2, rights(cluster, node)).await;
    suite.case("a token that ends lets nobody in again", LIMIT, ended_token(cluster, node)).await;
}

/// Method, path, and what the one who may do everything gets.
fn paths() -> Vec<(&'static str, String, u16)> {
    let of = |path: &str| path.replace("POD", POD);
    vec![
        ("GET", of("/healthz"), 200),
        ("GET", of("/healthz/syncloop"), 200),
        ("GET", of("/pods"), 200),
        ("GET", of("/pods/"), 200),
        ("GET", of("/runningpods/"), 200),
        ("GET", of("/configz"), 200),
        ("GET", of("/stats/summary"), 200),
        ("GET", of("/metrics"), 200),
        ("GET", of("/metrics/cadvisor"), 200),
        ("GET", of("/metrics/resource"), 200),
        ("GET", of("/metrics/probes"), 200),
        ("GET", of("/containerLogs/default/POD/main"), 200),
        ("GET", of("/containerLogs/default/POD/none"), 404),
        ("GET", of("/containerLogs/default/POD/..%2f..%2fmain"), 400),
        ("GET", of("/logs/"), 200),
        ("GET", of("/logs/none"), 404),
        ("GET", of("/logs/../etc/passwd"), 400),
        ("GET", of("/logs/%2e%2e/etc/passwd"), 400),
        ("GET", of("/logs/..%2fetc%2fpasswd"), 400),
        ("GET", of("/exec/default/POD/main?command=id&output=1"), 400),
        ("POST", of("/exec/default/POD/main?command=id&output=1"), 400),
        ("POST", of("/attach/default/POD/main?output=1"), 400),
        ("POST", of("/portForward/default/POD"), 400),
        ("POST", of("/run/default/POD/main?cmd=id"), 200),
        ("POST", of("/run/default/POD/none?cmd=id"), 404),
        ("POST", of("/run/default/POD/11111111-2222-3333-4444-555555555555/main?cmd=id"), 404),
        ("POST", of("/run/kube-system/POD/main?cmd=id"), 404),
        ("GET", of("/run/default/POD/main?cmd=id"), 405),
        ("POST", of("/checkpoint/default/none/main"), 404),
        ("GET", of("/"), 404),
        ("GET", of("/nothing"), 404),
        ("GET", of("/debug/pprof/"), 404),
        ("DELETE", of("/pods"), 405),
        ("GET", of("//pods"), 400),
    ]
}

async fn strangers(cluster: &Cluster, node: &Node, forged: &Credentials) -> Result<()> {
    let api = NodeApi::new(node.agent.api_port()?, &cluster.plane.ca_file())?;
    let rubbish = Credentials::token("not.a.token");
    let both = Credentials { token: rubbish.token.clone(), ..forged.clone() };
    let callers = [
        ("nobody", &Credentials::default()),
        ("a bad token", &rubbish),
        ("a forged certificate", forged),
        ("both", &both),
    ];
    for (who, credentials) in callers {
        for (method, path, _) in paths() {
            let answer = api.ask(credentials, method, &path, &[("Connection", "close")]).await?;
            ensure!(answer.status == 401, "{who}: {method} {path}: {}", answer.text);
        }
        for headers in [spdy(), websocket()] {
            let path = format!("/exec/default/{POD}/main?command=id&output=1");
            let (answer, _) = api.open(credentials, "GET", &path, &headers).await?;
            ensure!(answer.status == 401, "{who}: an upgrade: {}", answer.text);
        }
    }
    Ok(())
}

fn spdy() -> Vec<(&'static str, &'static str)> {
    vec![
        ("Connection", "Upgrade"),
        ("Upgrade", "SPDY/3.1"),
        ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
    ]
}

fn websocket() -> Vec<(&'static str, &'static str)> {
    vec![
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
    ]
}

/// A service account that may do `verb` with `resources`, and its token.
async fn account(cluster: &Cluster, name: &str, verb: &str, resources: &str) -> Result<Credentials> {
    let kubectl = &cluster.kubectl;
    kubectl.run(&["create", "serviceaccount", name]).await?;
    if !resources.is_empty() {
        let (verb, resource) = (format!("--verb={verb}"), format!("--resource={resources}"));
        kubectl.run(&["create", "clusterrole", name, &verb, &resource]).await?;
        let (role, subject) = (format!("--clusterrole={name}"), format!("--serviceaccount=default:{name}"));
        kubectl.run(&["create", "clusterrolebinding", name, &role, &subject]).await?;
    }
    Ok(Credentials::token(&kubectl.run(&["create", "token", name]).await?))
}

async fn rights(cluster: &Cluster, node: &Node) -> Result<()> {
    let api = NodeApi::new(node.agent.api_port()?, &cluster.plane.ca_file())?;
    let admin = Credentials::pair(&cluster.plane.user_pair("sweep-admin", "root", &["system:masters"])?);
    for (method, path, expected) in paths() {
        let answer = api.ask(&admin, method, &path, &[("Connection", "close")]).await?;
        ensure!(answer.status == expected, "admin: {method} {path}: {}", answer.text);
    }
    let powerless = account(cluster, "powerless", "", "").await?;
    let plain = Credentials::pair(&cluster.plane.user_pair("sweep-plain", "plain", &[])?);
    for credentials in [&powerless, &plain] {
        for (method, path, _) in paths() {
            let expected =
                if path.contains("..") || path.contains("%2e") || path.starts_with("//") { 400 } else { 403 };
            let answer = api.ask(credentials, method, &path, &[("Connection", "close")]).await?;
            ensure!(answer.status == expected, "powerless: {method} {path}: {}", answer.text);
        }
    }
    let pods_only = account(cluster, "pods-only", "get", "nodes/pods").await?;
    let proxy_get = account(cluster, "proxy-get", "get", "nodes/proxy").await?;
    let proxy_create = account(cluster, "proxy-create", "create", "nodes/proxy").await?;
    let log_get = account(cluster, "log-get", "get", "nodes/log").await?;
    let metrics_get = account(cluster, "metrics-get", "get", "nodes/metrics").await?;
    // The role may be a moment on its way to the authorizer.
    until_true("the roles are known", LIMIT, async || {
        Ok(api.get(&metrics_get, "/metrics/resource").await?.status == 200)
    })
    .await?;
    let exec = format!("/exec/default/{POD}/main?command=id&output=1");
    let run = format!("/run/default/{POD}/main?cmd=id");
    let logs = format!("/containerLogs/default/{POD}/main");
    let table = [
        ("pods-only", &pods_only, "GET", "/pods", 200),
        ("pods-only", &pods_only, "GET", "/runningpods/", 200),
        ("pods-only", &pods_only, "GET", "/configz", 403),
        ("pods-only", &pods_only, "GET", "/healthz", 403),
        ("pods-only", &pods_only, "GET", "/logs/", 403),
        ("pods-only", &pods_only, "POST", &run, 403),
        ("proxy-get", &proxy_get, "GET", "/pods", 200),
        ("proxy-get", &proxy_get, "GET", "/configz", 200),
        ("proxy-get", &proxy_get, "GET", "/healthz", 200),
        ("proxy-get", &proxy_get, "GET", &logs, 200),
        ("proxy-get", &proxy_get, "GET", "/logs/", 403),
        ("proxy-get", &proxy_get, "GET", "/metrics", 403),
        ("proxy-get", &proxy_get, "GET", "/stats/summary", 403),
        ("proxy-get", &proxy_get, "POST", &run, 403),
        ("proxy-get", &proxy_get, "POST", &exec, 403),
        ("proxy-get", &proxy_get, "GET", &exec, 403),
        ("proxy-create", &proxy_create, "POST", &run, 200),
        ("proxy-create", &proxy_create, "GET", "/pods", 403),
        ("log-get", &log_get, "GET", "/pods", 403),
        ("log-get", &log_get, "GET", &logs, 403),
        ("metrics-get", &metrics_get, "GET", "/metrics/resource", 200),
        ("metrics-get", &metrics_get, "GET", "/stats/summary", 403),
    ];
    for (who, credentials, method, path, expected) in table {
        let answer = api.ask(credentials, method, path, &[("Connection", "close")]).await?;
        ensure!(answer.status == expected, "{who}: {method} {path}: {}", answer.text);
    }
    for (who, credentials, expected) in [("proxy-get", &proxy_get, 403), ("proxy-create", &proxy_create, 101)]
    {
        for headers in [spdy(), websocket()] {
            let (answer, _) = api.open(credentials, "GET", &exec, &headers).await?;
            ensure!(answer.status == expected, "{who}: an upgrade by GET: {}", answer.text);
        }
    }
    Ok(())
}

async fn ended_token(cluster: &Cluster, node: &Node) -> Result<()> {
    use tokio::io::AsyncReadExt;
    let api = NodeApi::new(node.agent.api_port()?, &cluster.plane.ca_file())?;
    let brief = account(cluster, "brief", "create", "nodes/proxy").await?;
    let path = format!(
        "/exec/default/{POD}/main?command=sh&command=-c&command=read+x;echo+still+here&input=1&output=1"
    );
    let mut stream = None;
    until_true("the role is known", LIMIT, async || {
        let (answer, opened) = api.open(&brief, "GET", &path, &websocket()).await?;
        stream = Some(opened);
        Ok(answer.status == 101)
    })
    .await?;
    cluster.kubectl.run(&["delete", "serviceaccount", "brief"]).await?;
    let run = format!("/run/default/{POD}/main?cmd=id");
    until_true("the token is refused", LIMIT, async || Ok(api.post(&brief, &run).await?.status == 401))
        .await?;
    // What was begun with it goes on: a line on channel 0, masked with zeroes, is answered on channel 1.
    let mut stream = stream.ok_or_else(|| anyhow::anyhow!("no stream"))?;
    tokio::io::AsyncWriteExt::write_all(&mut stream, &[0x82, 0x82, 0, 0, 0, 0, 0, b'\n']).await?;
    let mut said = vec![];
    while !String::from_utf8_lossy(&said).contains("still here") {
        let mut buffer = [0; 256];
        let read = stream.read(&mut buffer).await?;
        ensure!(read > 0, "the stream ended with {said:?}");
        said.extend_from_slice(&buffer[..read]);
    }
    Ok(())
}
