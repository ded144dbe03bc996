//! Two connections joined into one, until one of them ends, nothing has moved for too long, or the agent stops.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One for each direction.
const BUFFER: usize = 16 << 10;

pub(super) async fn carry<A, B>(caller: A, runtime: B, idle: Duration, shutdown: CancellationToken)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let moved = Arc::new(Moved { started: Instant::now(), last: AtomicU64::new(0) });
    // Everything that moves passes the caller's side.
    let caller = Watched { inner: caller, moved: moved.clone() };
    tokio::select! {
        result = join(caller, runtime) => {
            if let Err(Broken::Reading(error) | Broken::Writing(error)) = result {
                tracing::debug!(%error, "a stream broke off");
            }
        }
        () = moved.silent_for(idle) => tracing::info!(?idle, "a stream was idle for too long and is closed"),
        () = shutdown.cancelled() => {}
    }
}

/// Where a direction broke off.
#[derive(Debug)]
enum Broken {
    Reading(io::Error),
    Writing(io::Error),
}

/// Returns when both have ended, or one is gone. A runtime that is gone may have sent something last, which is still
/// passed on to the caller, whatever the caller sent meanwhile.
async fn join<A, B>(caller: A, runtime: B) -> Result<(), Broken>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (from_caller, to_caller) = tokio::io::split(caller);
    let (from_runtime, to_runtime) = tokio::io::split(runtime);
    let (asked, said) = (forward(from_caller, to_runtime), forward(from_runtime, to_caller));
    tokio::pin!(asked, said);
    tokio::select! {
        ended = &mut said => {
            ended?;
            asked.await
        }
        ended = &mut asked => match ended {
            Ok(()) | Err(Broken::Writing(_)) => said.await,
            gone => gone,
        }
    }
}

/// Hands on what comes until it ends, and then the end.
async fn forward(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> Result<(), Broken> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await.map_err(Broken::Reading)?;
        if length == 0 {
            return to.shutdown().await.map_err(Broken::Writing);
        }
        to.write_all(&buffer[..length]).await.map_err(Broken::Writing)?;
        to.flush().await.map_err(Broken::Writing)?;
    }
}

struct Moved {
    started: Instant,
    /// Milliseconds since then.
    last: AtomicU64,
}

impl Moved {
    fn now(&self) {
        let elapsed = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(elapsed, Ordering::Relaxed);
    }

    async fn silent_for(&self, idle: Duration) {
        loop {
            let last = self.last.load(Ordering::Relaxed);
            tokio::time::sleep_until(self.started + Duration::from_millis(last) + idle).await;
            if self.last.load(Ordering::Relaxed) == last {
                return;
            }
        }
    }
}

struct Watched<S> {
    inner: S,
    moved: Arc<Moved>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        if polled.is_ready() {
            self.moved.now();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        if polled.is_ready() {
            self.moved.now();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_ends_when_nothing_has_moved_for_the_whole_time() {
        let ((caller, mut near), (runtime, mut far)) = (tokio::io::duplex(64), tokio::io::duplex(64));
        let idle = Duration::from_secs(2);
        let carried = tokio::spawn(carry(caller, runtime, idle, CancellationToken::new()));
        // Some of the time has passed when something moves, and is given back by it.
        tokio::time::sleep(idle / 8).await;
        let moved = Instant::now();
        near.write_all(b"hi").await.unwrap();
        let mut buffer = [0; 2];
        far.read_exact(&mut buffer).await.unwrap();
        carried.await.unwrap();
        assert!(moved.elapsed() >= idle, "it ended {:?} after something moved", moved.elapsed());
        assert_eq!(far.read(&mut buffer).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn one_side_may_end_before_the_other() {
        let ((caller, mut near), (runtime, mut far)) = (tokio::io::duplex(64), tokio::io::duplex(64));
        let carried = tokio::spawn(carry(caller, runtime, Duration::from_secs(60), CancellationToken::new()));
        near.shutdown().await.unwrap();
        let mut text = String::new();
        assert_eq!(far.read_to_string(&mut text).await.unwrap(), 0);
        far.write_all(b"the last word").await.unwrap();
        drop(far);
        near.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "the last word");
        carried.await.unwrap();
    }

    #[tokio::test]
    async fn the_last_word_of_a_runtime_that_is_gone_is_heard_by_a_caller_that_talks_on() {
        let ((caller, mut near), (runtime, mut far)) = (tokio::io::duplex(64), tokio::io::duplex(64));
        far.write_all(b"the last word").await.unwrap();
        drop(far);
        near.write_all(b"and another thing").await.unwrap();
        let carried = tokio::spawn(carry(caller, runtime, Duration::from_secs(60), CancellationToken::new()));
        let mut text = String::new();
        near.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "the last word");
        carried.await.unwrap();
    }

    #[tokio::test]
    async fn a_caller_that_is_gone_ends_it() {
        let ((caller, near), (runtime, mut far)) = (tokio::io::duplex(64), tokio::io::duplex(64));
        let carried = tokio::spawn(carry(caller, runtime, Duration::from_secs(60), CancellationToken::new()));
        drop(near);
        assert_eq!(far.read(&mut [0; 2]).await.unwrap(), 0);
        far.write_all(b"to nobody").await.unwrap();
        carried.await.unwrap();
    }
}
