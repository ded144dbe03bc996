//! The calls that are in flight to the runtime when this process ends, kept in systemd's file descriptor store for the next one:
//! sd_notify(3) with FDSTORE=1, and sd_listen_fds(3).
//!
//! A runtime cancels the calls of a client that is gone, wherever they stand: containerd then loses the shim that it was about
//! to start for a sandbox, some 15 MiB for good. While somebody holds the client's end open the calls finish. The next agent
//! waits for that, and finds sandboxes and containers that are whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use jiff::Timestamp;
use keelson_cri::{CallTracker, ResponseCounter};
use tokio::io::{AsyncReadExt, copy, sink};
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

/// The names of what is stored; when the process was started follows, since several may have ended one after the other, in
/// a container all with the same process id.
const CONNECTION: &str = "cri-connection-";
const CALLS: &str = "cri-calls-";
/// Where descriptors that were handed over begin.
const FIRST: i32 = 3;
/// More than the unit allows to be stored.
const MOST: i32 = 64;
/// A sandbox can take minutes where the network does. Pods that are well do not wait for that one: its name is taken until
/// it is done, and so it is not made twice.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The last agent may have read a response and not counted it any more.
const LONGEST_SILENCE: Duration = Duration::from_secs(3);

/// Stores the connection of mutating calls, and in shared memory how many of them are in flight.
pub(crate) struct FdStore(Option<Stored>);

struct Stored {
    /// Tells this process from others whose descriptors are in the store.
    process: String,
    calls: File,
}

impl FdStore {
    /// One that does nothing where there is no systemd.
    pub fn open() -> Self {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return Self(None);
        }
        let process = Timestamp::now().as_nanosecond().to_string();
        let stored = rustix::fs::memfd_create("keelson-cri-calls", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(io::Error::from)
            .and_then(|memory| store(CALLS, &process, memory.as_fd()).map(|()| File::from(memory)));
        Self(stored.inspect_err(complain).ok().map(|calls| Stored { process, calls }))
    }
}

impl CallTracker for FdStore {
    fn connected(&self, connection: BorrowedFd<'_>) {
        if let Some(stored) = &self.0 {
            // systemd drops it when the connection ends.
            let _ = store(CONNECTION, &stored.process, connection).inspect_err(complain);
        }
    }

    fn in_flight(&self, calls: u64) {
        if let Some(stored) = &self.0 {
            // Memory of our own; should it fail, the next agent waits for more or less than it has to.
            let _ = stored.calls.write_all_at(&calls.to_le_bytes(), 0);
        }
    }
}

fn store(name: &str, process: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    crate::notify::tell(&format!("FDSTORE=1\nFDNAME={name}{process}"), Some(descriptor))
}

fn complain(error: &io::Error) {
    tracing::warn!(%error, "systemd does not store the connection to the runtime; a kill may leave lost shims");
}

/// What agents before this one have left in the store, with its names.
pub(crate) struct Inherited(Vec<(String, OwnedFd)>);

/// To be called once, before anything else opens a file.
#[allow(unsafe_code)] // Descriptors are handed over as bare numbers.
pub(crate) fn inherited() -> Inherited {
    let variable = |name| std::env::var(name).ok();
    let handed = handed_over(
        variable("LISTEN_PID").as_deref(),
        variable("LISTEN_FDS").as_deref(),
        variable("LISTEN_FDNAMES").as_deref(),
        std::process::id(),
    );
    let mut inherited = vec![];
    for (number, name) in handed {
        // SAFETY: only looked at, and a number that is not open is an error here.
        let open =
            rustix::io::fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, rustix::io::FdFlags::CLOEXEC);
        if open.is_err() {
            continue;
        }
        // SAFETY: it is open, was handed to this process for its own, and nothing else has taken it: this runs once, first.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        inherited.push((name, descriptor));
    }
    Inherited(inherited)
}

/// Which descriptors were handed to the process `id`, with their names.
fn handed_over(to: Option<&str>, count: Option<&str>, names: Option<&str>, id: u32) -> Vec<(i32, String)> {
    let to_us = to.and_then(|to| to.parse().ok()) == Some(id);
    let count: i32 = count.filter(|_| to_us).and_then(|count| count.parse().ok()).unwrap_or(0);
    let names = names.unwrap_or_default().split(':').map(str::to_owned);
    let all = (0..count.clamp(0, MOST)).map(|n| FIRST + n);
    all.zip(names.chain(std::iter::repeat(String::new()))).collect()
}

/// What one earlier agent has left.
#[derive(Default)]
struct Left {
    calls: Option<File>,
    connections: Vec<UnixStream>,
}

/// Returns when the calls of earlier agents have ended, or do not seem to. A connection with a call that may be in flight stays
/// open for as long as that can last.
pub(crate) async fn let_calls_finish(inherited: Inherited, longest: Duration) {
    let mut left: BTreeMap<String, Left> = BTreeMap::new();
    for (name, descriptor) in inherited.0 {
        if let Some(process) = name.strip_prefix(CALLS) {
            left.entry(process.to_owned()).or_default().calls = Some(File::from(descriptor));
        } else if let Some(process) = name.strip_prefix(CONNECTION)
            && let Ok(connection) = stream(descriptor)
        {
            left.entry(process.to_owned()).or_default().connections.push(connection);
        }
    }
    let deadline = Instant::now() + LONGEST_WAIT;
    for (process, Left { calls, connections }) in left {
        let in_flight = calls.as_ref().and_then(|memory| number(memory).ok()).unwrap_or(0);
        if in_flight > 0 && !connections.is_empty() {
            tracing::info!(
                calls = in_flight,
                "waiting for calls to the runtime that the last agent had begun"
            );
        }
        for mut connection in connections {
            let done = match &calls {
                Some(calls) => all_ended(&mut connection, calls, deadline).await,
                None => false,
            };
            let open_for = if done { Duration::ZERO } else { longest };
            tokio::spawn(close_after(connection, open_for));
        }
        let forget = format!("FDSTOREREMOVE=1\nFDNAME={CALLS}{process}");
        let _ = crate::notify::tell(&forget, None).inspect_err(complain);
    }
}

/// Counts down until nothing is in flight any more. False: something may still be.
async fn all_ended(connection: &mut UnixStream, calls: &File, deadline: Instant) -> bool {
    let Ok(in_flight) = number(calls) else { return false };
    let (mut responses, mut buffer) = (ResponseCounter::default(), [0; 4096]);
    let mut open = in_flight;
    while open > 0 {
        let patience = LONGEST_SILENCE.min(deadline.saturating_duration_since(Instant::now()));
        let Ok(Ok(length @ 1..)) = timeout(patience, connection.read(&mut buffer)).await else { break };
        let Some(count) = responses.read(&buffer[..length]) else { break };
        open = in_flight.saturating_sub(count as u64);
        let _ = calls.write_all_at(&open.to_le_bytes(), 0);
    }
    if open > 0 {
        tracing::info!(calls = open, "the last agent's calls to the runtime have not all ended; going on");
    }
    open == 0
}

fn number(memory: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, 0)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The responses are for nobody. A connection that the runtime closes is closed at once.
async fn close_after(mut connection: UnixStream, time: Duration) {
    let _ = timeout(time, copy(&mut connection, &mut sink())).await;
    // Not only this process has it open: systemd does, until it sees the end.
    let _ = rustix::net::shutdown(connection.as_fd(), rustix::net::Shutdown::Both);
}

fn stream(connection: OwnedFd) -> io::Result<UnixStream> {
    let connection = std::os::unix::net::UnixStream::from(connection);
    connection.set_nonblocking(true)?;
    UnixStream::from_std(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_handed_to_this_process_is_taken() {
        let us = Some("7");
        let of = |to, count, names| handed_over(to, count, names, 7);
        let named = |n, name: &str| (n, name.to_owned());
        assert_eq!(of(us, Some("1"), Some("cri-connection-6")), [named(3, "cri-connection-6")]);
        assert_eq!(of(us, Some("2"), Some("a:b:c")), [named(3, "a"), named(4, "b")]);
        assert_eq!(of(us, Some("2"), Some("a")), [named(3, "a"), named(4, "")]);
        assert_eq!(of(us, Some("1"), None), [named(3, "")]);
        let bad =
            [(None, Some("1")), (Some("8"), Some("1")), (us, None), (us, Some("many")), (us, Some("-1"))];
        for (to, count) in bad {
            assert_eq!(of(to, count, Some("cri-connection-6")), [], "{to:?} {count:?}");
        }
        assert_eq!(of(us, Some("100000"), None).len(), 64);
    }

    fn left_by_an_agent(in_flight: u64) -> (Inherited, std::os::unix::net::UnixStream, File) {
        let memory = tempfile::tempfile().unwrap();
        memory.write_all_at(&in_flight.to_le_bytes(), 0).unwrap();
        let seen = memory.try_clone().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let kept =
            vec![("cri-calls-6".to_owned(), memory.into()), ("cri-connection-6".to_owned(), ours.into())];
        (Inherited(kept), theirs, seen)
    }

    /// An end of stream, as a runtime answers.
    const ANSWER: [u8; 9] = [0, 0, 0, 1, 5, 0, 0, 0, 1];

    #[tokio::test]
    async fn nothing_is_waited_for_when_nothing_was_asked_for() {
        let (inherited, _runtime, _) = left_by_an_agent(0);
        let_calls_finish(inherited, Duration::from_secs(60)).await;
    }

    #[tokio::test]
    async fn what_was_asked_for_is_waited_for_and_the_connection_is_closed_in_the_end() {
        let (inherited, mut runtime, memory) = left_by_an_agent(1);
        let settled = tokio::spawn(let_calls_finish(inherited, Duration::from_secs(3600)));
        io::Write::write_all(&mut runtime, &ANSWER).unwrap();
        settled.await.unwrap();
        assert_eq!(number(&memory).unwrap(), 0);
        runtime.set_nonblocking(true).unwrap();
        let mut runtime = UnixStream::from_std(runtime).unwrap();
        assert_eq!(runtime.read(&mut [0; 8]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_runtime_that_is_gone_is_not_waited_for() {
        let (inherited, runtime, _) = left_by_an_agent(3);
        drop(runtime);
        let_calls_finish(inherited, Duration::from_secs(60)).await;
    }
}
