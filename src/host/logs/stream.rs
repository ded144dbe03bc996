//! Streams a log to somebody: read, filter, hand over, wait. A reader that is slow holds the stream up and nothing else;
//! at most two blocks are in memory for it.

use std::io;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use keelson_core::logs::Filter;
use keelson_kit::blocking::BlockingLimit;
use tokio::sync::mpsc;

use super::reader::{LogReader, Read};
use super::watch::{LogWatch, Subscription};

const BLOCK: usize = 64 << 10;

/// How long a file that is not written to any more is waited for, where the kernel cannot tell whether it is complete.
const LAST_WRITER: Duration = Duration::from_secs(1);

pub enum Follow<Ended> {
    No,
    /// Until this future is done and everything is read. For a reader of [`LogReader::follow`] with the followers of the
    /// same watch.
    Until(LogWatch, Ended),
}

/// Returns when everything that was asked for was handed over, or when nobody takes it any more.
pub async fn stream<Ended>(
    reader: LogReader,
    filter: Filter,
    follow: Follow<Ended>,
    sink: mpsc::Sender<Bytes>,
) -> io::Result<()>
where
    Ended: Future<Output = ()>,
{
    let mut source = Source { reader, filter };
    match follow {
        Follow::No => loop {
            let (back, out, state) = read_block(source).await?;
            source = back;
            let end = matches!(state, State::Done | State::End | State::Unfinished);
            let mut out = out;
            if end {
                source.filter.end_of_file(&mut out);
            }
            if !out.is_empty() && sink.send(out.into()).await.is_err() || end {
                return Ok(());
            }
        },
        Follow::Until(watch, ended) => {
            // Subscribed before the first read, so that no change falls between a read and the wait for it.
            let subscription = watch.subscribe(source.reader.dir())?;
            follow_until(source, subscription, ended, sink).await
        }
    }
}

async fn follow_until(
    mut source: Source,
    mut subscription: Subscription,
    ended: impl Future<Output = ()>,
    sink: mpsc::Sender<Bytes>,
) -> io::Result<()> {
    tokio::pin!(ended);
    let changes = &mut subscription.changes;
    let mut has_ended = false;
    let mut names = u64::MAX;
    loop {
        let now = *changes.borrow_and_update();
        if std::mem::replace(&mut names, now.names) != now.names {
            source = look(source).await?;
        }
        let (back, out, state) = read_block(source).await?;
        source = back;
        if !out.is_empty() {
            // While the other side is slow, files that come up are still taken notice of.
            let mut out = Some(Bytes::from(out));
            while let Some(block) = out.take() {
                tokio::select! {
                    room = sink.reserve() => match room {
                        Ok(room) => room.send(block),
                        Err(_) => return Ok(()),
                    },
                    more = renamed(changes, names) => {
                        if !more {
                            return Ok(());
                        }
                        names = changes.borrow().names;
                        source = look(source).await?;
                        out = Some(block);
                    }
                }
            }
        }
        match state {
            State::Done => return Ok(()),
            State::More => continue,
            State::End if has_ended => {
                // Somebody may have rotated it one last time.
                let (back, found) = reading(move || {
                    let mut source = source;
                    let found = source.reader.look().map(|()| !source.reader.at_last_file());
                    (source, found)
                })
                .await?;
                source = back;
                if found? {
                    continue;
                }
                let mut out = Vec::new();
                source.filter.end_of_file(&mut out);
                if !out.is_empty() {
                    let _ = sink.send(out.into()).await;
                }
                return Ok(());
            }
            State::End | State::Unfinished => {}
        }
        let patience = async {
            match state {
                State::Unfinished => tokio::time::sleep(LAST_WRITER).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return Ok(()) },
            () = &mut ended, if !has_ended => has_ended = true,
            () = sink.closed() => return Ok(()),
            () = patience => source.reader.give_up_waiting(),
        }
    }
}

/// Waits until names have changed; false if that is not watched any more.
async fn renamed(changes: &mut tokio::sync::watch::Receiver<super::watch::Changes>, known: u64) -> bool {
    changes.wait_for(|c| c.names != known).await.is_ok()
}

struct Source {
    reader: LogReader,
    filter: Filter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// All that was asked for is out.
    Done,
    More,
    End,
    Unfinished,
}

/// Threads that read logs at once. Their disk may hang, and everything else that blocks uses the same threads.
static READING: LazyLock<BlockingLimit> = LazyLock::new(|| BlockingLimit::new(64));

/// Runs work on the files of a log on one of the threads for it.
pub async fn reading<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    READING.acquire().await?.run(work).await
}

/// One block, read where a slow disk holds nobody up.
async fn read_block(source: Source) -> io::Result<(Source, Vec<u8>, State)> {
    let read = reading(move || {
        let mut source = source;
        let (mut buffer, mut out) = (vec![0; BLOCK], Vec::new());
        let state = loop {
            if source.filter.is_done() {
                break State::Done;
            }
            match source.reader.read(&mut buffer)? {
                Read::Bytes(n) => {
                    source.filter.push(&buffer[..n], &mut out);
                    // Of a log that is mostly filtered out, many blocks make one.
                    if out.len() >= BLOCK / 2 {
                        break if source.filter.is_done() { State::Done } else { State::More };
                    }
                }
                Read::NextFile | Read::Truncated => source.filter.end_of_file(&mut out),
                Read::End => break State::End,
                Read::Unfinished => break State::Unfinished,
            }
        };
        Ok((source, out, state))
    });
    read.await?
}

async fn look(source: Source) -> io::Result<Source> {
    let looked = reading(move || {
        let mut source = source;
        source.reader.look().map(|()| source)
    });
    looked.await?
}

#[cfg(test)]
mod tests;
