//! The plain health endpoint, by default on 127.0.0.1:10248, which asks for no credentials and shows no secrets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use keelson_core::config::KubeletConfiguration;
use keelson_kit::http_listener::{self, Room, text};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::port;

/// Every process of the machine can connect.
const ROOM: Room = Room::Displacing(64);

/// Says whether the agent is well, or what is wrong with it.
pub type Health = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum HealthzError {
    #[error("healthzBindAddress {0:?} is not an IP address")]
    Address(String),
    #[error(
        "cannot listen on {address} for health checks: {source}; another kubelet may be running, or set healthzPort"
    )]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// None when healthzPort is 0, which switches the endpoint off.
pub async fn listen(config: &KubeletConfiguration) -> Result<Option<TcpListener>, HealthzError> {
    listen_within(config, port::PATIENCE).await
}

/// With a patience of its own for a port that is still held.
pub(crate) async fn listen_within(
    config: &KubeletConfiguration,
    patience: Duration,
) -> Result<Option<TcpListener>, HealthzError> {
    let Ok(port) = u16::try_from(config.healthz_port) else { return Ok(None) };
    if port == 0 {
        return Ok(None);
    }
    let ip: IpAddr = config
        .healthz_bind_address
        .parse()
        .map_err(|_| HealthzError::Address(config.healthz_bind_address.clone()))?;
    let address = SocketAddr::new(ip, port);
    let bound = port::open(address, patience, || port::listener(address)).await;
    bound.map(Some).map_err(|source| HealthzError::Listen { address, source })
}

pub async fn serve(listener: TcpListener, health: Health, shutdown: CancellationToken) {
    http_listener::serve(listener, ROOM, shutdown, move |request| {
        match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/healthz" | "/healthz/ping") => match health() {
                Ok(()) => text(StatusCode::OK, "ok"),
                Err(problem) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("unhealthy: {problem}\n")),
            },
            (_, "/healthz" | "/healthz/ping") => text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n"),
            _ => text(StatusCode::NOT_FOUND, "only /healthz is here\n"),
        }
    })
    .await;
}
