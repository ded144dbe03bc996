//! Serves the status on a socket that only root can open, and health and metrics over HTTP.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use keelson_kit::http_listener::{self, Room, text};
use keelson_kit::unix_socket::{OwnSocket, SocketError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::shared_state::SharedState;
use crate::status::Status;
use crate::{metrics, status_report};

/// Every process of the machine can connect.
const ROOM: Room = Room::Displacing(16);
/// A client of the socket that does not read is dropped after this.
const WRITE_TIME: Duration = Duration::from_secs(5);
/// A status with thousands of peers is a few megabytes.
const LARGEST_STATUS: u64 = 64 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("{0}")]
    Socket(#[from] SocketError),
    #[error(
        "cannot listen on {address} for health checks: {source}; set --healthz-port to another port, or to 0"
    )]
    Health { address: SocketAddr, source: io::Error },
}

#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error(
        "no overlay answers on {path}: {source}; is `keelson overlay` running? (--socket names another place)"
    )]
    Connect { path: PathBuf, source: io::Error },
    #[error("the overlay broke off its answer: {0}")]
    Read(#[from] io::Error),
    #[error("the overlay's answer cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// Opens the status socket. Waits a few seconds for a predecessor that is just ending.
pub async fn listen(path: &Path) -> Result<OwnSocket, ServeError> {
    Ok(OwnSocket::listen(path, "overlay").await?)
}

/// Writes the status as JSON to every client and closes the connection.
pub async fn serve_status(socket: OwnSocket, shared: Arc<SharedState>, shutdown: CancellationToken) {
    loop {
        let mut stream = tokio::select! {
            stream = socket.accept() => stream,
            () = shutdown.cancelled() => return,
        };
        let status = serde_json::to_vec(&status_report::status(&shared)).unwrap_or_default();
        let _ = tokio::time::timeout(WRITE_TIME, stream.write_all(&status)).await;
    }
}

/// The client of the socket, for `keelson overlay status`.
pub async fn ask(path: &Path) -> Result<Status, AskError> {
    let connected = UnixStream::connect(path).await;
    let stream = connected.map_err(|source| AskError::Connect { path: path.into(), source })?;
    let mut text = Vec::new();
    stream.take(LARGEST_STATUS).read_to_end(&mut text).await?;
    Ok(serde_json::from_slice(&text)?)
}

/// None where health checks are off.
pub async fn listen_health(address: Option<SocketAddr>) -> Result<Option<TcpListener>, ServeError> {
    let Some(address) = address else { return Ok(None) };
    TcpListener::bind(address).await.map(Some).map_err(|source| ServeError::Health { address, source })
}

/// Serves /healthz (this process), /readyz (the network) and /metrics.
pub async fn serve_health(listener: TcpListener, shared: Arc<SharedState>, shutdown: CancellationToken) {
    http_listener::serve(listener, ROOM, shutdown, move |request| answer(&request, &shared)).await;
}

fn answer(request: &Request<Incoming>, shared: &SharedState) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
    }
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "ok"),
        "/readyz" if shared.is_ready() => text(StatusCode::OK, "ok"),
        "/readyz" => {
            let why = shared.problem_summary().unwrap_or_else(|| "the network is being set up".into());
            text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
        }
        "/metrics" => text(StatusCode::OK, metrics::render(&status_report::status(shared))),
        _ => text(StatusCode::NOT_FOUND, "known here: /healthz, /readyz, /metrics\n"),
    }
}
