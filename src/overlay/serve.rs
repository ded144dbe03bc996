//! What is answered: the status on a socket that only root can open, health and metrics for whoever scrapes them.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::status::Status;
use crate::{metrics, report};

/// How many are served at once; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 16;
const HEAD_TIME: Duration = Duration::from_secs(5);
const HEAD_BYTES: usize = 16 * 1024;
/// A reader that does not read is let go.
const WRITE_TIME: Duration = Duration::from_secs(5);
/// A status with thousands of peers is a few megabytes.
const LARGEST_STATUS: u64 = 64 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("another overlay answers on {0}: stop it, or give this one another --socket")]
    InUse(PathBuf),
    #[error("{0} is there and is not a socket: remove it, or give another --socket")]
    NotASocket(PathBuf),
    #[error("cannot listen on {path}: {source}")]
    Socket { path: PathBuf, source: io::Error },
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

/// A listening socket whose file goes with it.
pub struct Local {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Drop for Local {
    fn drop(&mut self) {
        // Only our own file: a successor may have put its socket there already.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|now| now.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens with mode 0600. A socket that nobody answers on, left by one that was killed, is replaced.
pub fn listen(path: &Path) -> Result<Local, ServeError> {
    let failed = |source| ServeError::Socket { path: path.into(), source };
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !dir.is_dir() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(ServeError::NotASocket(path.into())),
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(ServeError::InUse(path.into()));
        }
        _ => {}
    }
    // Made under another name and moved into place, so that it never stands there with a wider mode.
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let _ = std::fs::remove_file(&fresh);
    let listener = UnixListener::bind(&fresh).map_err(failed)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&fresh, path))
        .and_then(|()| std::fs::symlink_metadata(path))
        .map(|metadata| Local { listener, path: path.into(), inode: metadata.ino() })
        .map_err(failed)
}

/// Writes the status as JSON to everyone who connects and may, and closes.
pub async fn serve_local(local: Local, board: Arc<Board>, shutdown: CancellationToken) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        let accepted = tokio::select! {
            accepted = local.listener.accept() => accepted,
            () = shutdown.cancelled() => return,
        };
        let Ok((mut stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // The file's mode keeps others out already; this holds should someone widen it.
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own) {
            continue;
        }
        let answer = serde_json::to_vec(&report::status(&board)).unwrap_or_default();
        let _ = tokio::time::timeout(WRITE_TIME, stream.write_all(&answer)).await;
    }
}

/// The other end, for `keelson overlay status`.
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

/// GET /healthz: whether this process is well. /readyz: whether the network is. /metrics.
pub async fn serve_health(listener: TcpListener, board: Arc<Board>, shutdown: CancellationToken) {
    let limit = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(room) = limit.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (board, ending) = (board.clone(), shutdown.clone());
        tokio::spawn(async move {
            let answer = |request: Request<Incoming>| {
                std::future::ready(Ok::<_, Infallible>(answer(&request, &board)))
            };
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::select! {
                _ = connection => {}
                () = ending.cancelled() => {}
            }
            drop(room);
        });
    }
}

fn answer(request: &Request<Incoming>, board: &Board) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n".into());
    }
    match request.uri().path() {
        "/healthz" => text(StatusCode::OK, "ok".into()),
        "/readyz" if board.is_ready() => text(StatusCode::OK, "ok".into()),
        "/readyz" => {
            let why = board.summary().unwrap_or_else(|| "the network is being set up".into());
            text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
        }
        "/metrics" => text(StatusCode::OK, metrics::render(&report::status(board))),
        _ => text(StatusCode::NOT_FOUND, "known here: /healthz, /readyz, /metrics\n".into()),
    }
}

fn text(code: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    let plain = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}
