//! Keeps the resident set small. glibc gives every thread an arena of its own and is slow to return what was freed;
//! one or two arenas are enough for two workers, and after a burst of pods the freed pages are handed back. So are those of the
//! program itself, most of which were needed once, at the start, or only lay beside what was.

use std::ops::Range;
use std::time::Duration;

use keelson_agent::registry::Registry;
use tokio_util::sync::CancellationToken;

/// Must run before any thread is started: an arena that is there stays. `arenas` is how many there may be.
#[allow(unsafe_code)] // mallopt has no safe wrapper.
pub(crate) fn settle_allocator(arenas: i32) {
    // SAFETY: mallopt takes two integers and touches the allocator's own settings only; no other thread runs yet.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 * 1024);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 * 1024);
    }
}

/// Hands back what is not in use: freed memory, and pages of files, which the kernel brings again when they are.
pub(crate) fn give_back() {
    trim();
    // Whatever cannot be read or given stays where it is.
    for range in std::fs::read_to_string("/proc/self/smaps").as_deref().map(file_pages).unwrap_or_default() {
        drop_pages(range);
    }
}

#[allow(unsafe_code)] // malloc_trim has no safe wrapper.
fn trim() {
    // SAFETY: malloc_trim takes one integer, locks the allocator itself and returns free pages only.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

#[allow(unsafe_code)] // madvise on memory that the kernel reported has no safe wrapper.
fn drop_pages(range: Range<usize>) {
    let start = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: the range is a private, read-only mapping of the program or one of its libraries that nobody has written to
    // (`file_pages`). It stays mapped for as long as the process runs, and a page that is dropped is read from its file again,
    // with the same bytes; so every reference into it stays valid.
    let _ = unsafe { rustix::mm::madvise(start, range.len(), rustix::mm::Advice::LinuxDontNeed) };
}

/// The parts of the program and its libraries that are exactly what is in their files: nobody may write to them, and nobody
/// has, as the loader does where addresses have to be filled in. Other files may be mapped today and something else there
/// tomorrow; what holds code stays where it was loaded.
fn file_pages(smaps: &str) -> Vec<Range<usize>> {
    let loaded: Vec<&str> = smaps
        .lines()
        .filter_map(mapping)
        .filter(|(_, mode, _)| *mode == "r-xp")
        .map(|(.., path)| path)
        .collect();
    let mut found = Vec::new();
    let mut at = None;
    for line in smaps.lines() {
        if let Some((range, mode, path)) = mapping(line) {
            let fixed = matches!(mode, "r--p" | "r-xp") && path.starts_with('/') && loaded.contains(&path);
            at = fixed.then_some(range);
        } else if line.strip_prefix("Anonymous:").is_some_and(|size| size.trim() == "0 kB") {
            found.extend(at.take());
        }
    }
    found
}

/// Where a mapping is, what may be done there, and of which file it is; None for a line that begins none.
fn mapping(line: &str) -> Option<(Range<usize>, &str, &str)> {
    let mut columns = line.split_whitespace();
    let (start, end) = columns.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    let mode = columns.next()?;
    Some((range, mode, columns.nth(3).unwrap_or_default()))
}

/// Once after each burst of changes, when it has been quiet for a while. Never while nothing happens.
pub(crate) async fn give_back_after_bursts(registry: Registry, shutdown: CancellationToken) {
    const QUIET: Duration = Duration::from_secs(5);
    let mut changes = registry.row_changes();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
        while let Ok(Ok(())) = tokio::time::timeout(QUIET, changes.changed()).await {}
        give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
56000000-56010000 r--p 00000000 fe:00 10633459                   /usr/bin/keelson
Size:                 64 kB
Rss:                  64 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
56010000-56020000 r-xp 00010000 fe:00 10633459                   /usr/bin/keelson
Anonymous:             0 kB
56020000-56030000 r--p 00020000 fe:00 10633459                   /usr/bin/keelson
Anonymous:            12 kB
56030000-56040000 rw-p 00030000 fe:00 10633459                   /usr/bin/keelson
Anonymous:             0 kB
57000000-57010000 rw-p 00000000 00:00 0                          [heap]
Anonymous:            64 kB
7e000000-7e010000 r--p 00000000 fe:00 77                         /var/lib/some.data
Anonymous:             0 kB
7f000000-7f010000 r--p 00000000 00:00 0
Anonymous:             0 kB
7ffd0000-7ffd4000 r--p 00000000 00:00 0                          [vvar]
Anonymous:             0 kB
";

    #[test]
    fn only_mappings_that_are_as_in_their_files_are_given_back() {
        assert_eq!(file_pages(SMAPS), [0x5600_0000..0x5601_0000, 0x5601_0000..0x5602_0000]);
        assert!(file_pages("gibberish\n12-zz r--p\nAnonymous: 0 kB\n").is_empty());
    }

    #[test]
    fn a_program_that_gave_everything_back_goes_on() {
        let before: Vec<String> = (0..100).map(|n| format!("{n:?}")).collect();
        give_back();
        assert!(before.iter().enumerate().all(|(n, text)| *text == n.to_string()));
    }
}
