//! Whether the agent is well: its loop turns, and the runtime answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// As long as a kubelet lets its loop be silent before it calls itself unhealthy.
const PATIENCE: Duration = Duration::from_secs(120);

/// When each was last seen alive. Written by the loops, read by whoever asks for health.
#[derive(Clone)]
pub struct Pulse(Arc<Inner>);

struct Inner {
    started: Instant,
    /// Milliseconds since the start; zero for the pod loop means that it has not begun.
    pod_loop: AtomicU64,
    runtime: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            pod_loop: AtomicU64::new(0),
            runtime: AtomicU64::new(0),
        }))
    }
}

impl Pulse {
    pub fn pod_loop_turned(&self) {
        self.0.pod_loop.store(self.now().max(1), Ordering::Relaxed);
    }

    pub fn runtime_answered(&self) {
        self.0.runtime.store(self.now(), Ordering::Relaxed);
    }

    /// What is wrong, if anything is.
    pub fn check(&self) -> Result<(), String> {
        judge_runtime(self.now(), self.0.runtime.load(Ordering::Relaxed))?;
        self.check_pod_loop()
    }

    /// What is wrong that a new process would mend. A runtime that is away is not: the agent waits for it, and reports so.
    pub fn check_pod_loop(&self) -> Result<(), String> {
        judge_pod_loop(self.now(), self.0.pod_loop.load(Ordering::Relaxed))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn judge_runtime(now: u64, answered: u64) -> Result<(), String> {
    match silent_seconds(now, answered) {
        Some(seconds) => Err(format!("the container runtime has not answered for {seconds} s")),
        None => Ok(()),
    }
}

fn judge_pod_loop(now: u64, turned: u64) -> Result<(), String> {
    // Before its first turn it waits for the runtime.
    match silent_seconds(now, turned).filter(|_| turned != 0) {
        Some(seconds) => Err(format!("the pod loop has not turned for {seconds} s")),
        None => Ok(()),
    }
}

fn silent_seconds(now: u64, since: u64) -> Option<u64> {
    let silent = Duration::from_millis(now.saturating_sub(since));
    (silent > PATIENCE).then_some(silent.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_minutes_of_silence_are_unhealthy() {
        for (case, now, pod_loop, runtime, loop_well, runtime_well) in [
            ("just started", 0, 0, 0, true, true),
            ("the runtime is waited for", 119_000, 0, 0, true, true),
            ("the runtime never came", 121_000, 0, 0, true, false),
            ("both are well", 500_000, 480_000, 499_000, true, true),
            ("the loop hangs", 500_000, 300_000, 499_000, false, true),
            ("the runtime hangs", 500_000, 499_000, 300_000, true, false),
        ] {
            assert_eq!(judge_pod_loop(now, pod_loop).is_ok(), loop_well, "{case}");
            assert_eq!(judge_runtime(now, runtime).is_ok(), runtime_well, "{case}");
        }
    }
}
