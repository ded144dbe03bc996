//! A way to a server whose connections can fall silent, as when a firewall on the way forgets them: nothing comes through any
//! more, and nobody is told.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub struct Relay {
    port: u16,
    /// Counts up; what was opened under an earlier number is forgotten.
    generation: watch::Sender<u64>,
    serving: JoinHandle<()>,
}

impl Relay {
    /// From a port of loopback to another.
    pub async fn start(to: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port for a relay")?;
        let port = listener.local_addr()?.port();
        let (generation, seen) = watch::channel(0);
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(carry(near, to, seen.clone()));
            }
        });
        Ok(Self { port, generation, serving })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connections that are open now carry nothing any more. New ones do.
    pub fn forget_connections(&self) {
        self.generation.send_modify(|n| *n += 1);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn carry(mut near: TcpStream, to: u16, mut generation: watch::Receiver<u64>) {
    let Ok(mut far) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)).await else { return };
    generation.mark_unchanged();
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        // Both ends stay open, so that neither hears of it.
        _ = generation.changed() => std::future::pending().await,
    }
}
