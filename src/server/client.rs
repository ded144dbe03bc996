//! The other end of the local socket, for `keelson pods` and `keelson why`.

use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes, BytesMut};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use keelson_core::timeline::WhyReport;
use keelson_core::view::PodRow;
use tokio::net::UnixStream;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no agent answers on {path}: {source}; is keelson running? (--socket names another place)")]
    Connect { path: PathBuf, source: std::io::Error },
    #[error("only root and the agent's own user may read {0}")]
    Refused(PathBuf),
    #[error("the agent broke off the answer: {0}")]
    Http(#[from] hyper::Error),
    /// In the agent's words.
    #[error("{0}")]
    Unknown(String),
    #[error("the agent answered {status}: {body}")]
    Status { status: StatusCode, body: String },
    #[error("the agent's answer cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// The pods as they are now.
pub async fn pods(socket: &Path) -> Result<Vec<PodRow>, ClientError> {
    let mut snapshots = open(socket, "/pods").await?;
    snapshots.next().await.map(Option::unwrap_or_default)
}

/// The pods now, and again whenever something changed.
pub async fn watch_pods(socket: &Path) -> Result<Snapshots, ClientError> {
    open(socket, "/pods?watch=true").await
}

/// Why a pod is as it is. `pod` is a name, NAMESPACE/NAME or a uid.
pub async fn why(socket: &Path, pod: &str, namespace: Option<&str>) -> Result<WhyReport, ClientError> {
    let mut target = format!("/why?pod={}", encoded(pod));
    if let Some(namespace) = namespace {
        target.push_str(&format!("&namespace={}", encoded(namespace)));
    }
    match ask(socket, &target).await {
        Ok(body) => Ok(serde_json::from_slice(&body.collect().await?.to_bytes())?),
        Err(ClientError::Status { status: StatusCode::NOT_FOUND, body }) => Err(ClientError::Unknown(body)),
        Err(other) => Err(other),
    }
}

/// Whatever was typed, as one value of a query.
fn encoded(text: &str) -> String {
    let byte = |b: u8| match b {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(b).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Snapshots of all pods, one JSON array a line.
pub struct Snapshots {
    body: Incoming,
    rest: BytesMut,
}

impl Snapshots {
    /// None when the agent ended.
    pub async fn next(&mut self) -> Result<Option<Vec<PodRow>>, ClientError> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.split_to(end);
                self.rest.advance(1);
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}

async fn open(socket: &Path, target: &str) -> Result<Snapshots, ClientError> {
    Ok(Snapshots { body: ask(socket, target).await?, rest: BytesMut::new() })
}

async fn ask(socket: &Path, target: &str) -> Result<Incoming, ClientError> {
    let stream = UnixStream::connect(socket).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::PermissionDenied => ClientError::Refused(socket.into()),
        _ => ClientError::Connect { path: socket.into(), source },
    })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = target.parse().unwrap_or_default();
    request.headers_mut().insert(http::header::HOST, http::HeaderValue::from_static("keelson"));
    let response = sender.send_request(request).await?;
    let status = response.status();
    if status != StatusCode::OK {
        let body = response.into_body().collect().await?.to_bytes();
        return Err(ClientError::Status { status, body: String::from_utf8_lossy(&body).trim().into() });
    }
    Ok(response.into_body())
}
