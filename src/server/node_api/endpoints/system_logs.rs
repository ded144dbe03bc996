//! /logs: the machine's own logs, files by their path and services by query.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use keelson_agent::NodeHandle;
use keelson_core::node_api::log_query::{LogQuery, Options, files_of, journal_arguments, log_query};
use keelson_host::system_logs::{SystemLog, open_beneath};
use keelson_kit::blocking::BlockingLimit;
use tokio::io::AsyncReadExt;
use tokio::sync::{Semaphore, mpsc};

use crate::node_api::answer::{Call, busy};
use crate::reply::{Reply, reply, text};

const ROOT: &str = "/var/log";
const CHUNK: usize = 32 << 10;
/// As long as a kubelet lets a query run.
const QUERY_TIME: Duration = Duration::from_secs(30);
/// Threads that read logs here at once. Their disk may hang, and everything else that blocks uses the same threads.
static READING: LazyLock<BlockingLimit> = LazyLock::new(|| BlockingLimit::new(8));
/// Queries run a program each.
static QUERIES: Semaphore = Semaphore::const_new(4);

pub(super) async fn answer(node: &NodeHandle, parts: Vec<String>, call: Call) -> Response<Reply> {
    let config = &node.settings().kubelet;
    if !config.enable_system_log_handler {
        return text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.\n");
    }
    if parts.is_empty() && config.enable_system_log_query {
        match log_query(&call.query) {
            Ok(None) => {}
            Ok(Some(LogQuery::File(parts))) => return file(parts).await,
            Ok(Some(LogQuery::Services { names, options })) => return services(names, options).await,
            Err(why) => return text(StatusCode::BAD_REQUEST, format!("{why}\n")),
        }
    }
    file(parts).await
}

async fn file(parts: Vec<String>) -> Response<Reply> {
    match read(move || open_beneath(Path::new(ROOT), &parts)).await {
        Ok(SystemLog::File(file, length)) => whole(file, length),
        Ok(SystemLog::Folder(names)) => {
            let line = |name: &String| format!("<a href=\"{0}\">{0}</a>\n", escaped(name));
            let list: String = names.iter().map(line).collect();
            reply(
                StatusCode::OK,
                "text/html; charset=utf-8",
                Reply::Whole(Some(format!("<!doctype html>\n<pre>\n{list}</pre>\n").into())),
            )
        }
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            text(StatusCode::NOT_FOUND, "404 page not found\n")
        }
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("the log cannot be opened: {e}\n")),
    }
}

/// Runs `work` on one of the few threads for it.
async fn read<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    READING.acquire().await?.run(work).await?
}

/// As much as there was when it was opened: a log that grows would never end.
fn whole(file: File, length: u64) -> Response<Reply> {
    let (sender, chunks) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut rest = file.take(length);
        loop {
            // No thread is held while the reader at the other end takes its time.
            let next = read(move || {
                let mut chunk = vec![0; CHUNK];
                let length = rest.read(&mut chunk)?;
                chunk.truncate(length);
                Ok((rest, chunk))
            });
            let next = tokio::select! {
                next = next => next,
                () = sender.closed() => return,
            };
            match next {
                Ok((back, chunk)) if !chunk.is_empty() => {
                    rest = back;
                    if sender.send(Bytes::from(chunk)).await.is_err() {
                        return;
                    }
                }
                Ok(_) | Err(_) => return,
            }
        }
    });
    reply(StatusCode::OK, "text/plain; charset=utf-8", chunks.into())
}

/// From the journal where the service writes there, else from its own file.
async fn services(names: Vec<String>, options: Options) -> Response<Reply> {
    let Ok(permit) = QUERIES.try_acquire() else { return busy("too many log queries at once") };
    let plain = options == Options::default();
    let (mut journal, mut files) = (vec![], vec![]);
    let known = units().await;
    for name in names {
        if known.iter().any(|unit| unit == &name || unit.strip_suffix(".service") == Some(&name)) {
            journal.push(name);
        } else {
            files.push(name);
        }
    }
    if journal.is_empty() {
        let [name] = files.as_slice() else {
            return text(StatusCode::NOT_FOUND, format!("no logs of {} are known\n", files.join(", ")));
        };
        if !plain {
            let why = format!("{name} has no journal, and a file takes no other parameters\n");
            return text(StatusCode::BAD_REQUEST, why);
        }
        for parts in files_of(name) {
            let found = file(parts).await;
            if found.status() == StatusCode::OK
                && found.headers()["content-type"] != "text/html; charset=utf-8"
            {
                return found;
            }
        }
        return text(StatusCode::NOT_FOUND, format!("no logs of {name} are known\n"));
    }
    let child = tokio::process::Command::new("journalctl")
        .args(journal_arguments(&journal, &options))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, format!("journalctl cannot be run: {e}\n")),
    };
    let Some(mut output) = child.stdout.take() else { return text(StatusCode::INTERNAL_SERVER_ERROR, "") };
    let (sender, chunks) = mpsc::channel(2);
    tokio::spawn(async move {
        let copying = async {
            loop {
                let mut chunk = vec![0; CHUNK];
                match output.read(&mut chunk).await {
                    Ok(0) | Err(_) => return,
                    Ok(read) => {
                        chunk.truncate(read);
                        if sender.send(Bytes::from(chunk)).await.is_err() {
                            return;
                        }
                    }
                }
            }
        };
        let _ = tokio::time::timeout(QUERY_TIME, copying).await;
        let _ = child.start_kill();
        let _ = child.wait().await;
        drop(permit);
    });
    reply(StatusCode::OK, "text/plain; charset=utf-8", chunks.into())
}

/// The units that have written to the journal; none where there is no journal.
async fn units() -> Vec<String> {
    let listing = tokio::process::Command::new("journalctl")
        .args(["--field", "_SYSTEMD_UNIT"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    match tokio::time::timeout(QUERY_TIME, listing).await {
        Ok(Ok(output)) => {
            String::from_utf8_lossy(&output.stdout).lines().map(|l| l.trim().to_owned()).collect()
        }
        _ => vec![],
    }
}

fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&#34;"),
            '\'' => text.push_str("&#39;"),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_that_take_nothing_hold_no_thread() {
        let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(4).build().unwrap();
        runtime.block_on(async {
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 20).unwrap();
            let stalled: Vec<_> = (0..16).map(|_| whole(file.try_clone().unwrap(), 1 << 20)).collect();
            // Behind whatever the readers began: every one of the threads is used in turn.
            for n in 0..16 {
                assert_eq!(tokio::task::spawn_blocking(move || n).await.unwrap(), n);
            }
            drop(stalled);
        });
    }
}
