//! Answers the probes of other hosts, on this host's overlay addresses only.

use std::net::{IpAddr, SocketAddr};

use keelson_kit::cidr::IpNetwork;
use tokio::net::UdpSocket;

use super::sweep::{PROBE_MAGIC, PROBE_PORT};

/// Answers until dropped. A reply is never longer than its request, and goes only into the pod network.
pub async fn answer(own: IpAddr, networks: Vec<IpNetwork>) -> std::io::Result<()> {
    let socket = UdpSocket::bind(SocketAddr::new(own, PROBE_PORT)).await?;
    let mut buffer = [0; 256];
    loop {
        // An error here is about an earlier reply that was refused.
        let Ok((len, from)) = socket.recv_from(&mut buffer).await else { continue };
        let known = networks.iter().any(|net| net.contains(from.ip()));
        if known && buffer[..len].starts_with(PROBE_MAGIC) {
            let _ = socket.send_to(&buffer[..len], from).await;
        }
    }
}
