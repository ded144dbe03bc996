//! A bounded share of the threads that may block. All blocking work of a process shares one pool of them, so work that an
//! outsider can make slow (a silent name server, a disk that hangs, a reader that reads nothing) takes its threads through
//! a limit of its own, and whoever holds all of one limit holds up nobody else.

use std::io;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Clones share one limit.
#[derive(Debug, Clone)]
pub struct BlockingLimit(Arc<Semaphore>);

/// The right to one thread. It is given back when the work has ended, not when somebody stopped waiting for it: a thread
/// that hangs goes on counting.
#[derive(Debug)]
pub struct BlockingPermit(OwnedSemaphorePermit);

impl BlockingLimit {
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(Semaphore::new(threads)))
    }

    /// Waits until a thread is free.
    pub async fn acquire(&self) -> io::Result<BlockingPermit> {
        // Only a closed semaphore refuses, and nobody closes this one.
        self.0.clone().acquire_owned().await.map(BlockingPermit).map_err(io::Error::other)
    }

    /// `None` if none is free at the moment.
    pub fn try_acquire(&self) -> Option<BlockingPermit> {
        self.0.clone().try_acquire_owned().ok().map(BlockingPermit)
    }
}

impl BlockingPermit {
    /// Runs `work` on a thread that may block. An error is a panic of `work`, or the end of the program.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        let held = self.0;
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(held);
            done
        });
        done.await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_thread_that_nobody_waits_for_any_more_still_counts() {
        let limit = BlockingLimit::new(1);
        let (release, released) = mpsc::channel::<()>();
        let permit = limit.acquire().await.unwrap();
        let hangs = tokio::time::timeout(Duration::ZERO, permit.run(move || released.recv())).await;
        assert!(hangs.is_err(), "it has begun, and nobody waits for it any more");
        assert!(limit.try_acquire().is_none(), "its thread is still held");
        drop(release);
        let next = limit.acquire().await.unwrap();
        assert_eq!(next.run(|| 7).await.unwrap(), 7);
        assert!(limit.try_acquire().is_some());
    }
}
