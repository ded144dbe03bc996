//! An etcd that carries a write out and answers too late. A proxy in front of the real one withholds the answers to the one
//! write that matters, because no signal to etcd can be timed to come between a lease and its key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use keelson_proto::etcd::etcdserverpb as pb;
use keelson_proto::etcd::mvccpb::event::EventType;
use keelson_tests::hosts::WIRE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Channel;

use super::Trio;
use super::etcd::Etcd;

const SUBNETS: &str = "/coreos.com/network/subnets/";
/// A session lists the leases, gets a lease of its own, and writes its key.
const WRITE: usize = 3;

/// A host whose registration is answered too late keeps the key that etcd wrote all the same, and the subnet with it.
pub async fn slow_write(etcd: &Etcd, trio: &mut Trio) -> Result<()> {
    trio.clear().await?;
    etcd.wipe().await?;
    etcd.configure("vxlan").await?;
    let mut changes = watch(&etcd.url).await?;
    let withheld = Arc::new(AtomicBool::new(false));
    let listener = TcpListener::bind((WIRE, 0)).await?;
    let proxy = format!("http://{WIRE}:{}", listener.local_addr()?.port());
    let forwarding = tokio::spawn(forward(listener, address(&etcd.url)?, withheld.clone()));
    trio.hosts[0].start_overlay(&["--etcd-endpoints", &proxy])?;
    trio.hosts[0].wait_ready().await?;
    ensure!(withheld.load(Ordering::SeqCst), "the write went through without a delay");
    let mut written = Vec::new();
    while written.len() < 2 {
        let response = changes.message().await?.context("the watch ended")?;
        for event in &response.events {
            let key = event.kv.as_ref().map(|kv| String::from_utf8_lossy(&kv.key).into_owned());
            ensure!(event.r#type() == EventType::Put, "{key:?} was deleted after {written:?}");
            written.extend(key);
        }
    }
    ensure!(written[0] == written[1], "the host registered {written:?}, one after the other");
    forwarding.abort();
    Ok(())
}

async fn watch(url: &str) -> Result<tonic::Streaming<pb::WatchResponse>> {
    let channel = Channel::from_shared(url.to_owned())?.connect().await?;
    let create = pb::WatchCreateRequest {
        key: SUBNETS.into(),
        range_end: SUBNETS.replace("subnets/", "subnets0").into(),
        start_revision: 0,
        progress_notify: false,
    };
    let first =
        pb::WatchRequest { request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)) };
    let requests =
        futures::StreamExt::chain(futures::stream::once(async { first }), futures::stream::pending());
    let mut stream = pb::watch_client::WatchClient::new(channel).watch(requests).await?.into_inner();
    let created = stream.message().await?.context("no answer to a watch")?;
    ensure!(created.created, "the watch was not created: {created:?}");
    Ok(stream)
}

fn address(url: &str) -> Result<String> {
    Ok(url.strip_prefix("http://").context("an etcd without TLS")?.to_owned())
}

async fn forward(listener: TcpListener, etcd: String, withheld: Arc<AtomicBool>) -> Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        let (from_client, to_client) = client.into_split();
        let (from_etcd, to_etcd) = TcpStream::connect(&etcd).await?.into_split();
        let silent = Arc::new(AtomicBool::new(false));
        tokio::spawn(answers(from_etcd, to_client, silent.clone()));
        tokio::spawn(requests(from_client, to_etcd, silent, withheld.clone()));
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, silent: Arc<AtomicBool>) -> Result<()> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        if !silent.load(Ordering::SeqCst) {
            to.write_all(&bytes[..count]).await?;
        }
    }
}

/// Passes HTTP/2 frames on, and counts those that begin a request. From the first write on, once in all, the connection is
/// not answered any more.
async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    silent: Arc<AtomicBool>,
    withheld: Arc<AtomicBool>,
) -> Result<()> {
    const HEADERS: u8 = 1;
    let mut preface = [0; 24];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    let mut begun = 0;
    loop {
        let mut frame = vec![0; 9];
        from.read_exact(&mut frame).await?;
        let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
        begun += usize::from(frame[3] == HEADERS);
        if begun == WRITE && frame[3] == HEADERS && !withheld.swap(true, Ordering::SeqCst) {
            silent.store(true, Ordering::SeqCst);
        }
        frame.resize(9 + length, 0);
        from.read_exact(&mut frame[9..]).await?;
        to.write_all(&frame).await?;
    }
}
