//! What it costs to measure and to remove what a pod has put on disk. In a process of its own, whose memory nobody else
//! uses.
#![allow(clippy::expect_used)]

use std::fs;
use std::path::Path;

use keelson_host::stats::tree_usage;
use keelson_host::tree;

/// What this process had in memory at most, in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

/// So many names of 200 bytes: some 5 MB, were they all held at once.
const NAMES: u32 = 20_000;
const ALLOWED: u64 = 2 << 20;

/// Names of one file, which is the dearest case to remember, and directories in one another.
fn fill(top: &Path) {
    let name = |n: u32| format!("{}{n}", "long-name-".repeat(20));
    let file = top.join(name(0));
    fs::write(&file, "").expect("write");
    for n in 1..NAMES {
        fs::hard_link(&file, top.join(name(n))).expect("link");
    }
    let mut dir = tree::open_dir(top).expect("open");
    for _ in 0..2000 {
        rustix::fs::mkdirat(&dir, c"nested-directory", rustix::fs::Mode::RWXU).expect("mkdir");
        dir = tree::open_subdir(&dir, c"nested-directory").expect("open");
    }
}

#[test]
fn neither_many_names_nor_deep_directories_cost_memory() {
    let temp = tempfile::tempdir().expect("a temporary directory");
    let top = temp.path().join("volume");
    fs::create_dir(&top).expect("mkdir");
    fill(&top);
    let before = peak();
    let (_, inodes) = tree_usage(&top, u64::MAX).expect("usage");
    let counted = peak() - before;
    tree::remove(&top).expect("removal");
    let removed = peak() - before;
    assert!(inodes > 200, "{inodes}");
    assert!(!top.exists());
    assert!(counted < ALLOWED, "counting took {counted} bytes");
    assert!(removed < ALLOWED, "removing took {removed} bytes");
}
