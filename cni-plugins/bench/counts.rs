//! What a call costs however busy the machine is: its system calls and its own instructions, with those of the processes
//! that it starts.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that runs another one and counts.
pub struct Counter {
    pub what: &'static str,
    /// With its options; the program that is counted follows.
    pub prefix: Vec<OsString>,
    log: PathBuf,
    read: fn(&str) -> Option<u64>,
}

/// The counters that work on this machine.
pub fn counters(dir: &Path) -> Vec<Counter> {
    let log = dir.join("count");
    let with = |what, line: &str, read| {
        let line = line.replace("LOG", &log.display().to_string());
        Counter { what, prefix: line.split(' ').map(OsString::from).collect(), log: log.clone(), read }
    };
    let strace = with("system calls", "strace -f -qq -o LOG", lines_of_strace);
    let perf = with("user instructions", "perf stat -x, -e instructions:u -o LOG", perf_stat);
    [strace, perf].into_iter().filter(Counter::works).collect()
}

impl Counter {
    fn works(&self) -> bool {
        let Some((program, options)) = self.prefix.split_first() else { return false };
        let ran = Command::new(program).args(options).arg("true").output();
        ran.is_ok_and(|out| out.status.success()) && self.take().is_some()
    }

    /// What was counted in the last call.
    pub fn take(&self) -> Option<u64> {
        let text = fs::read_to_string(&self.log).ok();
        let _ = fs::remove_file(&self.log);
        (self.read)(&text?)
    }
}

/// One line a call; what was interrupted by another process's has two, signals and ends begin with their marks.
fn lines_of_strace(text: &str) -> Option<u64> {
    let calls =
        text.lines().filter(|l| !l.contains(" resumed>") && !l.contains("+++ ") && !l.contains("--- "));
    u64::try_from(calls.count()).ok().filter(|n| *n > 0)
}

fn perf_stat(text: &str) -> Option<u64> {
    text.lines().find(|l| l.contains("instructions")).and_then(|l| l.split(',').next()?.parse().ok())
}
