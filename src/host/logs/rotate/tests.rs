use std::fs;
use std::io::Read;

use flate2::read::GzDecoder;

use super::*;
use crate::testing;

fn now(second: u8) -> Timestamp {
    format!("2026-01-02T03:04:{second:02}Z").parse().expect("time")
}

fn begin(root: &Path, log: &Path, max_files: usize, second: u8) -> Rotation {
    Rotation::begin(root, log, max_files, now(second), &Followers::default()).expect("rotate")
}

/// As far as this side of it goes: the runtime has reopened the log at once.
fn rotate(root: &Path, log: &Path, max_files: usize, second: u8) {
    begin(root, log, max_files, second).compress().expect("compress");
}

#[test]
fn files_are_moved_compressed_and_removed() {
    let temp = testing::dir();
    let dir = temp.path().join("ns_pod_uid/main");
    fs::create_dir_all(&dir).expect("mkdir");
    let log = dir.join("0.log");
    let listed = || {
        let mut names: Vec<_> = fs::read_dir(&dir)
            .expect("list")
            .map(|e| e.expect("entry").file_name().into_string().expect("name"))
            .collect();
        names.sort();
        names
    };
    for round in 1..=4u8 {
        fs::write(&log, format!("round {round}\n")).expect("write");
        rotate(temp.path(), &log, 4, round);
    }
    assert_eq!(
        listed(),
        ["0.log.20260102-030402.gz", "0.log.20260102-030403.gz", "0.log.20260102-030404"],
        "with the new log there are four"
    );
    let mut text = String::new();
    let archive = fs::File::open(dir.join("0.log.20260102-030403.gz")).expect("open");
    GzDecoder::new(archive).read_to_string(&mut text).expect("decompress");
    assert_eq!(text, "round 3\n");

    // A crash has left a half-written archive, and one whose log was not removed yet.
    fs::write(dir.join("0.log.20260102-030404.tmp"), "half").expect("write");
    fs::write(dir.join("0.log.20260102-030403"), "round 3\n").expect("write");
    fs::write(&log, "round 5\n").expect("write");
    rotate(temp.path(), &log, 4, 5);
    assert_eq!(listed(), ["0.log.20260102-030403.gz", "0.log.20260102-030404.gz", "0.log.20260102-030405"]);
}

#[test]
fn a_failed_rotation_is_undone() {
    let temp = testing::dir();
    let dir = temp.path().join("ns_pod_uid/main");
    fs::create_dir_all(&dir).expect("mkdir");
    let log = dir.join("0.log");
    fs::write(&log, "one").expect("write");
    begin(temp.path(), &log, 3, 1).undo().expect("undo");
    assert_eq!(fs::read_to_string(&log).expect("read"), "one");
    let rotation = begin(temp.path(), &log, 3, 2);
    fs::write(&log, "two").expect("the runtime was only late");
    rotation.undo().expect("undo");
    assert_eq!(fs::read_to_string(&log).expect("read"), "two");
    assert_eq!(fs::read_to_string(dir.join("0.log.20260102-030402")).expect("read"), "one");
}

#[test]
fn a_file_that_is_still_written_to_is_not_compressed() {
    keelson_require::require!(testing::leases());
    let temp = testing::dir();
    let dir = temp.path().join("ns_pod_uid/main");
    fs::create_dir_all(&dir).expect("mkdir");
    let log = dir.join("0.log");
    let mut slow = fs::File::create(&log).expect("create");
    rotate(temp.path(), &log, 5, 1);
    fs::write(&log, "two").expect("write");
    rotate(temp.path(), &log, 5, 2);
    slow.write_all(b"late").expect("write");
    drop(slow);
    assert_eq!(fs::read_to_string(dir.join("0.log.20260102-030401")).expect("still there"), "late");
    fs::write(&log, "three").expect("write");
    rotate(temp.path(), &log, 5, 3);
    assert!(dir.join("0.log.20260102-030401.gz").exists());
}

#[test]
fn looking_at_a_size_opens_nothing() {
    let temp = testing::dir();
    let log = temp.path().join("0.log");
    assert_eq!(size(&log).expect("absent"), None);
    fs::write(&log, "12345").expect("write");
    assert_eq!(size(&log).expect("there"), Some(5));
}
