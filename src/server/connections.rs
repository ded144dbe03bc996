//! Serves HTTP/1 on accepted connections, so that no peer can hold more than a little memory or a few sockets.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::reply::Reply;

/// A peer that has not finished its request's head by then is dropped.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Enough for every request that an endpoint here knows.
const HEAD_BYTES: usize = 16 * 1024;

/// How many connections one listener serves at once. Further ones wait in the kernel's queue.
pub(crate) struct Limit(Arc<Semaphore>);

impl Limit {
    pub fn new(connections: usize) -> Self {
        Self(Arc::new(Semaphore::new(connections)))
    }

    /// Waits for room; None when the limit was closed, which nobody does.
    pub async fn room(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().acquire_owned().await.ok()
    }
}

/// Serves one connection in a task of its own until the peer is done or `shutdown` comes.
pub(crate) fn serve<Io, Handler>(
    io: Io,
    room: OwnedSemaphorePermit,
    shutdown: CancellationToken,
    handler: Handler,
) where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Handler: Fn(Request<Incoming>) -> Response<Reply> + Send + Sync + 'static,
{
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
            () = shutdown.cancelled() => {}
        }
        drop(room);
    });
}
