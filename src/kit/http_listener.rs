//! A small HTTP/1 listener for health, metrics and local questions: no peer can hold more than a little memory or a few
//! sockets, and where anybody may connect, nobody can keep others out by holding all of them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::unix_socket::{ACCEPT_PAUSE, OwnSocket};

/// A peer that has not finished its request's head by then is dropped.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Enough for every request that is known behind such a listener.
const HEAD_BYTES: usize = 16 * 1024;

/// Where connections come from.
pub trait Accept: Send {
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next one. What cannot be accepted is logged and tried again after a pause.
    fn accept(&self) -> impl Future<Output = Self::Io> + Send;
}

impl Accept for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> TcpStream {
        loop {
            match TcpListener::accept(self).await {
                Ok((stream, _)) => return stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Accept for OwnSocket {
    type Io = UnixStream;

    async fn accept(&self) -> UnixStream {
        OwnSocket::accept(self).await
    }
}

/// How many connections there may be at once, and who gives way when there are as many.
#[derive(Debug, Clone, Copy)]
pub enum Room {
    /// A newcomer waits in the kernel's queue until one ends. For peers that are trusted, whose answers may take long.
    Waiting(usize),
    /// The oldest connection ends for a newcomer. For peers that may be anybody, whose answers are short: a request is
    /// answered long before as many others have come.
    Displacing(usize),
}

impl Room {
    fn connections(self) -> usize {
        match self {
            Self::Waiting(connections) | Self::Displacing(connections) => connections,
        }
    }
}

/// Serves until `shutdown`.
pub async fn serve<Listener, Handler, Reply>(
    listener: Listener,
    room: Room,
    shutdown: CancellationToken,
    handler: Handler,
) where
    Listener: Accept,
    Handler: Fn(Request<Incoming>) -> Response<Reply> + Send + Sync + 'static,
    Reply: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let (limit, handler) = (Arc::new(Semaphore::new(room.connections())), Arc::new(handler));
    // The oldest first. Those that have ended are still in here until their turn comes.
    let mut open: VecDeque<CancellationToken> = VecDeque::new();
    loop {
        let permit = match room {
            // Nobody closes the semaphore.
            Room::Waiting(_) => match limit.clone().acquire_owned().await {
                Ok(permit) => Some(permit),
                Err(_) => return,
            },
            Room::Displacing(_) => None,
        };
        let io = tokio::select! {
            io = listener.accept() => io,
            () = shutdown.cancelled() => return,
        };
        let ending = shutdown.child_token();
        if permit.is_none() {
            open.retain(|connection| !connection.is_cancelled());
            if open.len() >= room.connections()
                && let Some(oldest) = open.pop_front()
            {
                oldest.cancel();
            }
            open.push_back(ending.clone());
        }
        let handler = handler.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| std::future::ready(Ok::<_, Infallible>(handler(request))));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(io), service);
            tokio::select! {
                result = connection => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "a connection ended early");
                    }
                }
                () = ending.cancelled() => {}
            }
            // It counts no longer.
            ending.cancel();
            drop(permit);
        });
    }
}

/// A whole answer in plain text.
pub fn text(status: StatusCode, text: impl Into<String>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text.into())));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn exchange(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // A server that drops the connection mid-request may reset it; what it answered before still counts.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = vec![];
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn requests_are_answered_one_after_another_and_huge_ones_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve(listener, Room::Waiting(1), shutdown.clone(), |request| {
            text(StatusCode::OK, request.uri().path().to_owned())
        }));
        let huge = format!("GET /huge HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(1 << 20));
        let answer = exchange(address, &huge).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "a head of 1 MiB was read");
        let answer = exchange(address, "GET /next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("/next"), "{answer}");
        shutdown.cancel();
        served.await.unwrap();
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    }

    #[tokio::test]
    async fn silent_peers_in_every_place_keep_nobody_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        tokio::spawn(serve(listener, Room::Displacing(4), shutdown.clone(), |_| text(StatusCode::OK, "ok")));
        let mut silent = vec![];
        for _ in 0..4 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = exchange(address, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        // The oldest went for it, and no other: the last one is still served.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0);
        let last = silent.last_mut().unwrap();
        last.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        last.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        shutdown.cancel();
    }
}
