//! Keeps the resident set small. glibc gives every thread an arena of its own and is slow to return what was freed;
//! two arenas are enough for two workers, and after a burst of pods the freed pages are handed back.

use std::time::Duration;

use keelson_agent::view::View;
use tokio_util::sync::CancellationToken;

/// Must run before any thread is started: an arena that is there stays.
#[allow(unsafe_code)] // mallopt only takes two integers; it has no safe wrapper.
pub(crate) fn settle_allocator() {
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 * 1024);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 * 1024);
    }
}

#[allow(unsafe_code)] // malloc_trim takes one integer and has no safe wrapper.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Once after each burst of changes, when it has been quiet for a while. Never while nothing happens.
pub(crate) async fn give_back_after_bursts(view: View, shutdown: CancellationToken) {
    const QUIET: Duration = Duration::from_secs(5);
    let mut changes = view.subscribe();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
        while let Ok(Ok(())) = tokio::time::timeout(QUIET, changes.changed()).await {}
        give_back();
    }
}
