use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use keelson_core::logs::Stream;
use tokio::sync::oneshot;

use super::*;
use crate::logs::{Followers, Rotation};
use crate::testing;

fn all() -> Filter {
    Filter::new(None, false, Stream::All, None)
}

fn entry(i: usize) -> String {
    format!("2026-01-02T03:04:05.000000006Z stdout F line {i}\n")
}

async fn collect(mut blocks: mpsc::Receiver<Bytes>) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(block) = blocks.recv().await {
        all.extend_from_slice(&block);
    }
    all
}

fn prepare() -> (tempfile::TempDir, PathBuf) {
    let temp = testing::dir();
    let logs = temp.path().join("ns_pod_uid/main");
    fs::create_dir_all(&logs).expect("mkdir");
    (temp, logs.join("0.log"))
}

#[tokio::test]
async fn a_log_that_is_not_followed_ends() {
    let (temp, log) = prepare();
    let text: String = (0..20_000).map(entry).collect();
    fs::write(&log, format!("{text}2026-01-02T03:04:05Z stdout F half")).expect("write");
    let (sink, blocks) = mpsc::channel(1);
    let reader = LogReader::open(temp.path(), &log).expect("open");
    let run = stream(reader, all(), Follow::<std::future::Ready<()>>::No, sink);
    let (done, got) = tokio::join!(run, collect(blocks));
    done.expect("stream");
    let expected: String = (0..20_000).map(|i| format!("line {i}\n")).collect();
    assert_eq!(got, format!("{expected}half").as_bytes());
}

/// Writes as a runtime does: the old file is finished only after the new one has been begun.
struct Runtime {
    root: PathBuf,
    log: PathBuf,
    file: File,
    followers: Followers,
}

impl Runtime {
    fn write(&mut self, i: usize) {
        self.file.write_all(entry(i).as_bytes()).expect("write");
    }
    fn rotate(&mut self, last_words: usize) {
        let rotation =
            Rotation::begin(&self.root, &self.log, 3, Timestamp::now(), &self.followers).expect("rotate");
        let new = File::create_new(&self.log).expect("new log");
        let mut old = std::mem::replace(&mut self.file, new);
        // What the runtime had in its buffers still goes to the old one, after the new one is there.
        std::thread::yield_now();
        old.write_all(entry(last_words).as_bytes()).expect("write");
        drop(old);
        rotation.compress().expect("compress");
    }
}

fn start_runtime(root: &Path, log: &Path, watch: &LogWatch) -> Runtime {
    let file = File::create_new(log).expect("log");
    Runtime { root: root.into(), log: log.into(), file, followers: watch.followers().clone() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_line_comes_once_and_in_order_through_rotations() {
    const LINES: usize = 60_000;
    let (temp, log) = prepare();
    let watch = LogWatch::start().expect("watch");
    let mut runtime = start_runtime(temp.path(), &log, &watch);
    let mut followers = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..3 {
        let (sink, blocks) = mpsc::channel(1);
        let (end, ended) = oneshot::channel::<()>();
        let reader = LogReader::follow(temp.path(), &log, watch.followers()).expect("open");
        let until = Follow::Until(watch.clone(), async move { drop(ended.await) });
        followers.push((tokio::spawn(stream(reader, all(), until, sink)), tokio::spawn(collect(blocks))));
        ends.push(end);
    }
    let writer = std::thread::spawn(move || {
        for i in 0..LINES {
            if i % 3000 == 2999 { runtime.rotate(i) } else { runtime.write(i) }
        }
    });
    tokio::task::spawn_blocking(|| writer.join()).await.expect("join").expect("writer");
    drop(ends);
    let expected: String = (0..LINES).map(|i| format!("line {i}\n")).collect();
    for (run, got) in followers {
        run.await.expect("task").expect("stream");
        assert_eq!(String::from_utf8(got.await.expect("task")).expect("text"), expected);
    }
}

#[tokio::test]
async fn what_is_written_is_seen_at_once_and_an_unread_stream_ends_with_its_reader() {
    let (temp, log) = prepare();
    let watch = LogWatch::start().expect("watch");
    let mut runtime = start_runtime(temp.path(), &log, &watch);
    let (sink, mut blocks) = mpsc::channel(1);
    let reader = LogReader::follow(temp.path(), &log, watch.followers()).expect("open");
    let run = tokio::spawn(stream(reader, all(), Follow::Until(watch, std::future::pending()), sink));
    for i in 0..3 {
        runtime.write(i);
        assert_eq!(blocks.recv().await.expect("block"), format!("line {i}\n"));
    }
    drop(blocks);
    run.await.expect("task").expect("ended by its reader");
}

#[tokio::test]
async fn a_tail_that_is_followed_begins_at_the_end() {
    let (temp, log) = prepare();
    let watch = LogWatch::start().expect("watch");
    let mut runtime = start_runtime(temp.path(), &log, &watch);
    (0..10).for_each(|i| runtime.write(i));
    let (sink, blocks) = mpsc::channel(1);
    let mut reader = LogReader::follow(temp.path(), &log, watch.followers()).expect("open");
    reader.seek_tail(2).expect("tail");
    let (end, ended) = oneshot::channel::<()>();
    let run =
        tokio::spawn(stream(reader, all(), Follow::Until(watch, async move { drop(ended.await) }), sink));
    runtime.write(10);
    drop(end);
    let got = collect(blocks).await;
    run.await.expect("task").expect("stream");
    assert_eq!(got, b"line 8\nline 9\nline 10\n");
}
