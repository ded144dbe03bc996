//! Keeps the node's addresses those of the host: a lease may run out, the network may come up after the agent.

use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use keelson_core::config::Settings;
use keelson_core::node::{HostAddresses, fixed_addresses, next_addresses, node_addresses};
use keelson_host::machine::{NetworkError, host_addresses, interfaces};
use keelson_netkit::Monitor;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::node::Node;

/// Changes come in groups: one address goes and the next one comes.
const SETTLE: Duration = Duration::from_secs(1);
/// For what the name stands for. Without an answer the node goes by its interfaces.
const RESOLVER: Duration = Duration::from_secs(5);
const PROC: &str = "/proc";

pub async fn read(settings: &Settings) -> Result<Vec<IpAddr>, NetworkError> {
    let fixed = fixed_addresses(&settings.node_ips);
    if !fixed.is_empty() {
        return Ok(fixed);
    }
    Ok(node_addresses(&settings.node_name, &settings.node_ips, &found(settings).await?))
}

pub async fn follow(node: Arc<Node>) {
    if !fixed_addresses(&node.settings.node_ips).is_empty() {
        return std::future::pending().await;
    }
    let mut changes = match listen() {
        Ok(changes) => changes,
        Err(error) => {
            tracing::warn!(error, "the node's addresses stay as they are until the agent is started again");
            return std::future::pending().await;
        }
    };
    loop {
        if let Err(error) = next(&mut changes).await {
            tracing::debug!(%error, "the kernel's word of addresses was lost; reading them");
        }
        tokio::time::sleep(SETTLE).await;
        match found(&node.settings).await {
            Ok(found) => update(&node, &found),
            Err(error) => tracing::debug!(%error, "the host's addresses cannot be read"),
        }
    }
}

fn update(node: &Node, found: &HostAddresses) {
    let chosen = node_addresses(&node.settings.node_name, &node.settings.node_ips, found);
    node.state.signals.update(|signals| {
        let next = next_addresses(&signals.addresses, &found.on_host, &chosen);
        if signals.addresses != next {
            tracing::info!(from = ?signals.addresses, to = ?next, "the node's addresses changed");
            signals.addresses = next;
        }
    });
}

async fn found(settings: &Settings) -> Result<HostAddresses, NetworkError> {
    let name = settings.node_name.clone();
    let resolving = tokio::task::spawn_blocking(move || -> Vec<IpAddr> {
        (name.as_str(), 0).to_socket_addrs().map(|all| all.map(|a| a.ip()).collect()).unwrap_or_default()
    });
    let of_name = match tokio::time::timeout(RESOLVER, resolving).await {
        Ok(Ok(found)) => found,
        Ok(Err(_)) | Err(_) => vec![],
    };
    let reading = tokio::task::spawn_blocking(|| -> Result<_, NetworkError> {
        let on_host = interfaces()?.into_iter().flat_map(|i| i.addresses).collect();
        Ok((on_host, host_addresses(Path::new(PROC))?))
    });
    let (on_host, by_route) =
        reading.await.unwrap_or_else(|e| Err(NetworkError::from(io::Error::other(e))))?;
    Ok(HostAddresses { on_host, of_name, by_route })
}

#[expect(
    deprecated,
    reason = "its successor is unsafe for descriptors that may change; a monitor's never does"
)]
fn listen() -> Result<AsyncFd<Monitor>, String> {
    let monitor = Monitor::addresses().map_err(|e| e.to_string())?;
    AsyncFd::with_interest(monitor, Interest::READABLE).map_err(|e| e.to_string())
}

/// Returns after an address changed.
async fn next(changes: &mut AsyncFd<Monitor>) -> Result<(), String> {
    loop {
        let mut changed = false;
        let mut ready = changes.readable_mut().await.map_err(|e| e.to_string())?;
        ready.get_inner_mut().drain(|_| changed = true).map_err(|e| e.to_string())?;
        ready.clear_ready();
        if changed {
            return Ok(());
        }
    }
}
