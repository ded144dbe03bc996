//! Commands in a container: how long one takes from the connection to its end, and how long a character takes there and
//! back in one that is open. The runtime alone is the floor of both: its streaming server, called without an agent.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use keelson_proto::runtime::v1::ExecRequest;
use keelson_tests::runtime::Runtime;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::{Peer, drain};
use crate::{setting, websocket};

/// Milliseconds from connection to end, microseconds there and back.
#[derive(Default)]
pub struct Took {
    pub whole: Vec<f64>,
    pub echoed: Vec<f64>,
}

trait Both: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Both for T {}

/// By turns; the floor's figures are returned, a peer's are added to its own.
pub async fn measure(peers: &mut [Peer]) -> Result<Took> {
    let mut took = Took::default();
    peers.iter_mut().for_each(|p| p.exec.push(Took::default()));
    let floor = Floor::new(peers.first().context("nobody to be measured")?).await?;
    let rounds = setting("BENCH_EXECS", 40);
    println!("{rounds} commands");
    for _ in 0..rounds {
        took.whole.push(whole(async || floor.open("true", false).await).await?);
        for peer in peers.iter_mut() {
            let path = format!("/exec/default/{}-log/main?command=true&output=1&error=1", peer.name);
            let time = whole(async || Ok(Box::new(peer.websocket(&path).await?) as Box<dyn Both>)).await?;
            peer.exec.last_mut().context("nowhere to put it")?.whole.push(time);
        }
    }
    let rounds = setting("BENCH_ECHOES", 3000);
    println!("{rounds} characters");
    let mut open: Vec<Box<dyn Both>> = vec![floor.open("cat", true).await?];
    for peer in peers.iter() {
        let path = format!("/exec/default/{}-log/main?command=cat&input=1&output=1", peer.name);
        open.push(Box::new(peer.websocket(&path).await?));
    }
    for _ in 0..rounds {
        let all = std::iter::once(&mut took).chain(peers.iter_mut().filter_map(|p| p.exec.last_mut()));
        for (took, stream) in all.zip(&mut open) {
            let began = Instant::now();
            websocket::say(stream, b"x").await?;
            websocket::receive(stream).await?;
            took.echoed.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok(took)
}

async fn whole(open: impl AsyncFnOnce() -> Result<Box<dyn Both>>) -> Result<f64> {
    let began = Instant::now();
    drain(open().await?).await?;
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

struct Floor {
    runtime: Runtime,
    container: String,
}

impl Floor {
    /// In the container of a peer.
    async fn new(peer: &Peer) -> Result<Self> {
        let runtime = Runtime::connect(&peer.containerd.socket()).await?;
        let pod = format!("{}-log", peer.name);
        let container = runtime.containers_of(&pod).await?.pop().context("no container")?.id;
        Ok(Self { runtime, container })
    }

    async fn open(&self, command: &str, stdin: bool) -> Result<Box<dyn Both>> {
        let request = ExecRequest {
            container_id: self.container.clone(),
            cmd: vec![command.to_owned()],
            stdin,
            stdout: true,
            stderr: !stdin,
            tty: false,
        };
        let url = self.runtime.runtime.clone().exec(request).await?.into_inner().url;
        let (authority, path) = url
            .strip_prefix("http://")
            .and_then(|rest| rest.split_once('/'))
            .with_context(|| format!("{url} is no address of a streaming server"))?;
        let mut stream = TcpStream::connect(authority).await?;
        stream.set_nodelay(true)?;
        let mut head = format!("GET /{path} HTTP/1.1\r\nHost: {authority}\r\n");
        for (name, value) in websocket::HEADERS {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await?;
        let mut said = vec![];
        while !said.ends_with(b"\r\n\r\n") {
            said.push(stream.read_u8().await?);
        }
        ensure!(said.starts_with(b"HTTP/1.1 101"), "{url} was answered {}", String::from_utf8_lossy(&said));
        Ok(Box::new(stream))
    }
}
