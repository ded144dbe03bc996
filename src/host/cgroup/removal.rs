//! Taking a cgroup away: whoever is left in it is killed, then the directories go from the inside out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::CgroupError;
use super::layout::subdirectories;

/// How long processes may take to die of SIGKILL before the removal gives up; it is tried again later.
const PATIENCE: Duration = Duration::from_secs(5);
/// The kernel says nothing when the last process of a v1 cgroup is gone, so a busy one is tried again this soon.
const RETRY: Duration = Duration::from_millis(5);

/// Kills every process in these cgroups and below, and waits until they are dead. A process that cannot be killed is
/// found by the removal, which then fails.
pub(super) fn kill_all(paths: &[PathBuf]) {
    let deadline = Instant::now() + PATIENCE;
    // A dying process may have made another, so list until nobody is left.
    while Instant::now() < deadline {
        let mut pids: Vec<i32> = paths.iter().flat_map(|p| processes(p)).collect();
        pids.sort_unstable();
        pids.dedup();
        if pids.is_empty() {
            return;
        }
        let mut dying = Vec::new();
        for pid in pids.into_iter().filter_map(Pid::from_raw) {
            // By descriptor, so that a number that was reused meanwhile is never hit.
            let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            if paths.iter().any(|p| processes(p).contains(&pid.as_raw_nonzero().get())) {
                pidfd_send_signal(&fd, Signal::KILL).ok();
                dying.push(fd);
            }
        }
        for fd in dying {
            let left = deadline.saturating_duration_since(Instant::now());
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timespec(left))).ok();
        }
    }
}

/// Every process in a cgroup and below.
fn processes(path: &Path) -> Vec<i32> {
    let own = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = own.lines().filter_map(|line| line.trim().parse().ok()).collect();
    for child in subdirectories(path).unwrap_or_default() {
        pids.extend(processes(&path.join(child)));
    }
    pids
}

/// Removes every one of these cgroups, whatever happens to the others, and reports the first that would not go.
pub(super) fn remove_all(paths: &[PathBuf]) -> Result<(), CgroupError> {
    let deadline = Instant::now() + PATIENCE;
    let mut problem = None;
    for path in paths {
        if let Err(e) = remove(path, deadline) {
            let left = processes(path);
            let problem_text =
                if left.is_empty() { e.to_string() } else { format!("{e}; processes {left:?} are in it") };
            problem.get_or_insert(CgroupError::Busy { path: path.clone(), problem: problem_text });
        }
    }
    problem.map_or(Ok(()), Err)
}

fn remove(path: &Path, deadline: Instant) -> io::Result<()> {
    for child in subdirectories(path).map_err(|e| io::Error::other(e.to_string()))? {
        remove(&path.join(child), deadline)?;
    }
    loop {
        match fs::remove_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                wait_until_empty(path, deadline);
            }
            other => return other,
        }
    }
}

/// On v2 the kernel reports when a cgroup empties; on v1 there is only trying again.
fn wait_until_empty(path: &Path, deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    if let Ok(events) = fs::File::open(path.join("cgroup.events"))
        && fs::read_to_string(path.join("cgroup.events")).is_ok_and(|text| text.contains("populated 1"))
    {
        poll(
            &mut [PollFd::new(&events, PollFlags::PRI)],
            Some(&timespec(left.min(Duration::from_millis(200)))),
        )
        .ok();
        return;
    }
    std::thread::sleep(RETRY.min(left));
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
