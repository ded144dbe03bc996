//! Work on the disk and in the cgroup tree, off the async threads.

use std::sync::LazyLock;

use keelson_kit::blocking::BlockingLimit;

/// Threads for work on paths that pods name. What they lead to may never answer (a server of NFS that is gone), and
/// everything else that blocks uses the same threads.
static FOREIGN: LazyLock<BlockingLimit> = LazyLock::new(|| BlockingLimit::new(64));

/// As `blocking`, for work on paths that pods name.
pub(super) async fn blocking_on_foreign<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, String>
where
    T: Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    let permit = FOREIGN.acquire().await.map_err(|e| e.to_string())?;
    let done = permit.run(work).await.map_err(|e| e.to_string())?;
    done.map_err(|e| e.to_string())
}

/// Runs `work` on a thread that may block, with a panic turned into an error like any other.
pub(super) async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, String>
where
    T: Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) => Err(e.to_string()),
        Err(e) => Err(e.to_string()),
    }
}
