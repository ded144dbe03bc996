//! Streams to the runtime: exec, attach and port-forward. The runtime's streaming server speaks with the caller itself, SPDY
//! or WebSocket, whatever the two agree upon; here the connections are only joined, byte for byte.

mod carry;
mod upgrade;

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::node_api::answer::busy;
use crate::reply::{Reply, text};
pub(super) use upgrade::Wanted;

/// Streams at once; each costs a few buffers here and a few descriptors.
const MOST: usize = 512;
/// Until the runtime's streaming server has said yes or no.
const OPENING: Duration = Duration::from_secs(30);
/// Of a refusal by the runtime, no more is passed on.
const LONGEST_REFUSAL: usize = 64 << 10;

/// Shared by all streams of this node.
#[derive(Clone)]
pub(super) struct Streaming {
    room: Arc<Semaphore>,
    idle: Duration,
}

/// Room for one stream, taken before the runtime is asked for anything.
pub(super) struct Room(OwnedSemaphorePermit, Duration);

impl Streaming {
    pub fn new(idle: Duration) -> Self {
        Self { room: Arc::new(Semaphore::new(MOST)), idle }
    }

    pub fn room(&self) -> Result<Room, Box<Response<Reply>>> {
        match self.room.clone().try_acquire_owned() {
            Ok(permit) => Ok(Room(permit, self.idle)),
            Err(_) => Err(Box::new(busy("too many streams on this node"))),
        }
    }
}

impl Room {
    /// Hands the caller's upgrade to the runtime's streaming server at `url` and joins the two.
    pub async fn join(
        self,
        mut request: Request<Incoming>,
        url: &str,
        shutdown: CancellationToken,
    ) -> Response<Reply> {
        let opened = tokio::time::timeout(OPENING, open(&request, url)).await;
        let mut answer = match opened {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => return failed(&why),
            Err(_) => return failed("it did not answer in time"),
        };
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return refusal(answer).await;
        }
        let mut reply = Response::new(Reply::Whole(None));
        *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *reply.headers_mut() = upgrade::passed_on(answer.headers());
        let (caller, runtime) = (hyper::upgrade::on(&mut request), hyper::upgrade::on(&mut answer));
        tokio::spawn(async move {
            let Self(_permit, idle) = self;
            // The caller's side is upgraded when it has our answer; one that never takes it must not stay for ever.
            let both = tokio::time::timeout(OPENING, async { tokio::try_join!(caller, runtime) });
            if let Ok(Ok((caller, runtime))) = both.await {
                carry::carry(TokioIo::new(caller), TokioIo::new(runtime), idle, shutdown).await;
            }
        });
        reply
    }
}

async fn open(request: &Request<Incoming>, url: &str) -> Result<Response<Incoming>, String> {
    let url: http::Uri = url.parse().map_err(|_| format!("it gave a URL that is none: {url:?}"))?;
    let (Some("http"), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return Err(format!(
            "it gave a URL that is not plain http: {url}; switch TLS off in its streaming server"
        ));
    };
    let host = authority.host().trim_matches(['[', ']']);
    let port = authority.port_u16().unwrap_or(80);
    let stream =
        TcpStream::connect((host, port)).await.map_err(|e| format!("{authority} does not answer: {e}"))?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| format!("{authority}: {e}"))?;
    tokio::spawn(connection.with_upgrades());
    let mut to_runtime = Request::new(Empty::<bytes::Bytes>::new());
    *to_runtime.method_mut() = request.method().clone();
    let target = url.path_and_query().map_or("/", |p| p.as_str());
    *to_runtime.uri_mut() = target.parse().map_err(|_| format!("it gave a URL that is none: {url}"))?;
    *to_runtime.headers_mut() = upgrade::passed_on(request.headers());
    let host = header::HeaderValue::from_str(authority.as_str()).map_err(|e| e.to_string())?;
    to_runtime.headers_mut().insert(header::HOST, host);
    sender.send_request(to_runtime).await.map_err(|e| format!("{authority} broke off: {e}"))
}

/// What the runtime said instead of yes.
async fn refusal(answer: Response<Incoming>) -> Response<Reply> {
    let status = if answer.status().is_success() { StatusCode::BAD_GATEWAY } else { answer.status() };
    let body = Limited::new(answer.into_body(), LONGEST_REFUSAL).collect();
    let body = tokio::time::timeout(OPENING, body).await;
    let said = body.ok().and_then(Result::ok).map(|b| b.to_bytes()).unwrap_or_default();
    text(status, String::from_utf8_lossy(&said).into_owned())
}

fn failed(why: &str) -> Response<Reply> {
    tracing::warn!(why, "a stream was not opened by the runtime's streaming server");
    text(StatusCode::BAD_GATEWAY, format!("the runtime's streaming server failed: {why}\n"))
}
