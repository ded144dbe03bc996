use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;

use super::*;
use crate::logs::Rotation;
use crate::testing;

fn dir() -> (tempfile::TempDir, std::path::PathBuf) {
    let temp = testing::dir();
    let logs = temp.path().join("ns_pod_uid/main");
    fs::create_dir_all(&logs).expect("mkdir");
    (temp, logs)
}

/// Everything up to where nothing more comes for now.
fn drain(reader: &mut LogReader) -> String {
    let (mut all, mut buffer) = (Vec::new(), [0; 7]);
    loop {
        match reader.read(&mut buffer).expect("read") {
            Read::Bytes(n) => all.extend_from_slice(&buffer[..n]),
            Read::NextFile => all.push(b'|'),
            Read::Truncated => all.push(b'!'),
            Read::End => break,
            Read::Unfinished => {
                all.push(b'?');
                break;
            }
        }
    }
    String::from_utf8(all).expect("text")
}

#[test]
fn files_are_read_in_the_order_of_their_rotation() {
    let (temp, logs) = dir();
    let log = logs.join("0.log");
    fs::write(logs.join("0.log.20260102-030400"), "older").expect("write");
    fs::write(&log, "one").expect("write");
    let mut reader = LogReader::open(temp.path(), &log).expect("open");
    assert_eq!(drain(&mut reader), "one");
    // Two rotations and a compression between two looks.
    fs::rename(&log, logs.join("0.log.20260102-030401")).expect("rename");
    fs::write(logs.join("0.log.20260102-030402"), "two").expect("write");
    fs::remove_file(logs.join("0.log.20260102-030401")).expect("remove");
    fs::write(logs.join("0.log.20260102-030401.gz"), "x").expect("write");
    fs::write(&log, "three").expect("write");
    reader.look().expect("look");
    reader.look().expect("again");
    // Removed before it is read; it is held open.
    fs::remove_file(logs.join("0.log.20260102-030402")).expect("remove");
    assert_eq!(drain(&mut reader), "|two|three");
    assert!(reader.at_last_file());
}

/// A follower that does not run while its log is rotated so many times, of which two are kept.
fn follower_after(rotations: usize) -> String {
    let (temp, logs) = dir();
    let log = logs.join("0.log");
    let followers = Followers::default();
    fs::write(&log, "0").expect("write");
    let mut reader = LogReader::follow(temp.path(), &log, &followers).expect("open");
    for i in 1..=rotations {
        let rotation =
            Rotation::begin(temp.path(), &log, 3, jiff::Timestamp::UNIX_EPOCH, &followers).expect("rotate");
        fs::write(&log, i.to_string()).expect("write");
        rotation.compress().expect("compress");
    }
    reader.look().expect("look");
    let read = drain(&mut reader);
    assert!(reader.at_last_file());
    read
}

#[test]
fn what_rotation_removes_is_handed_to_who_follows() {
    assert_eq!(follower_after(9), "0|1|2|3|4|5|6|7|8|9");
}

#[test]
fn a_follower_that_is_too_slow_loses_the_oldest_files_whole() {
    let rotations = 2 * MOST_WAITING;
    // The last one that was moved aside and the log itself are still there; the first is the one being read.
    let kept = (rotations - MOST_WAITING + 1..=rotations).map(|i| i.to_string());
    let expected: Vec<String> = std::iter::once("0".to_owned()).chain(kept).collect();
    assert_eq!(follower_after(rotations), expected.join("|"));
}

#[test]
fn a_file_that_was_handed_over_before_the_first_is_open_is_not_repeated() {
    let (temp, logs) = dir();
    let log = logs.join("0.log");
    let followers = Followers::default();
    fs::write(&log, "one").expect("write");
    let (dir, name) = LogDir::of(temp.path(), &log).expect("directory");
    let registration = followers.register(&dir, &name).expect("register");
    for text in ["two", "three"] {
        let rotation =
            Rotation::begin(temp.path(), &log, 5, jiff::Timestamp::UNIX_EPOCH, &followers).expect("rotate");
        fs::write(&log, text).expect("write");
        rotation.compress().expect("compress");
    }
    let mut reader = LogReader::begin(dir, name, Some(registration)).expect("open");
    assert_eq!(drain(&mut reader), "three");
}

#[test]
fn a_file_is_not_left_while_somebody_writes_to_it() {
    keelson_require::require!(testing::leases());
    let (temp, logs) = dir();
    let log = logs.join("0.log");
    let mut old = File::create(&log).expect("create");
    old.write_all(b"one").expect("write");
    let mut reader = LogReader::open(temp.path(), &log).expect("open");
    fs::rename(&log, logs.join("0.log.20260102-030401")).expect("rename");
    fs::write(&log, "two").expect("write");
    reader.look().expect("look");
    assert_eq!(drain(&mut reader), "one?");
    old.write_all(b", late").expect("write");
    drop(old);
    assert_eq!(drain(&mut reader), ", late|two");
}

#[test]
fn a_log_that_is_away_for_a_moment_is_found_under_its_new_name() {
    let (temp, logs) = dir();
    let log = logs.join("0.log");
    assert!(LogReader::open(temp.path(), &log).is_err(), "there is no log at all");
    fs::write(logs.join("0.log.20260102-030401"), "one").expect("write");
    let mut reader = LogReader::open(temp.path(), &log).expect("open");
    fs::write(&log, "two").expect("write");
    reader.look().expect("look");
    assert_eq!(drain(&mut reader), "one|two");
}

#[test]
fn a_log_that_was_emptied_begins_anew() {
    let (temp, logs) = dir();
    let log = logs.join("0.log");
    fs::write(&log, "a long line").expect("write");
    let mut reader = LogReader::open(temp.path(), &log).expect("open");
    assert_eq!(drain(&mut reader), "a long line");
    fs::write(&log, "short").expect("write");
    assert_eq!(drain(&mut reader), "!short");
}

#[test]
fn a_tail_is_found_from_the_end() {
    let (temp, logs) = dir();
    let log = logs.join("0.log");
    let tail = |content: &[u8], lines| {
        fs::write(&log, content).expect("write");
        let mut reader = LogReader::open(temp.path(), &log).expect("open");
        reader.seek_tail(lines).expect("seek");
        drain(&mut reader)
    };
    for (content, lines, expected) in [
        ("a\nb\nc\n", 0, ""),
        ("a\nb\nc\n", 1, "c\n"),
        ("a\nb\nc\n", 3, "a\nb\nc\n"),
        ("a\nb\nc\n", 9, "a\nb\nc\n"),
        ("", 2, ""),
    ] {
        assert_eq!(tail(content.as_bytes(), lines), expected, "{lines} of {content:?}");
    }
    let many: String = (0..100_000).map(|i| format!("{i}\n")).collect();
    assert_eq!(tail(many.as_bytes(), 3), "99997\n99998\n99999\n");
    assert_eq!(tail(many.as_bytes(), 50_000).lines().next(), Some("50000"));
}

#[test]
fn nothing_outside_of_the_directory_is_read() {
    let (temp, logs) = dir();
    let secret = temp.path().join("secret");
    fs::write(&secret, "secret").expect("write");
    let log = logs.join("0.log");
    symlink(&secret, &log).expect("link");
    assert!(LogReader::open(temp.path(), &log).is_err(), "a link in the log's place");
    fs::remove_file(&log).expect("remove");
    symlink(&secret, logs.join("0.log.20260102-030401")).expect("link");
    assert!(LogReader::open(temp.path(), &log).is_err(), "a link in a rotated log's place");
    fs::remove_file(logs.join("0.log.20260102-030401")).expect("remove");
    fs::write(&log, "fine").expect("write");
    symlink(&logs, temp.path().join("ns_pod_uid/link")).expect("link");
    assert!(LogReader::open(temp.path(), &temp.path().join("ns_pod_uid/link/0.log")).is_err());
    assert!(LogReader::open(&logs, &secret).is_err(), "outside of the root");
    assert!(LogReader::open(temp.path(), &logs.join("../../secret")).is_err());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        logs.join("1.log"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("fifo");
    assert!(LogReader::open(temp.path(), &logs.join("1.log")).is_err(), "a pipe must not block");
}
