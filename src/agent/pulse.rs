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
        let (pod_loop, runtime) =
            (self.0.pod_loop.load(Ordering::Relaxed), self.0.runtime.load(Ordering::Relaxed));
        judge(self.now(), pod_loop, runtime)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn judge(now: u64, pod_loop: u64, runtime: u64) -> Result<(), String> {
    let silent = |since: u64| Duration::from_millis(now.saturating_sub(since));
    if silent(runtime) > PATIENCE {
        return Err(format!("the container runtime has not answered for {} s", silent(runtime).as_secs()));
    }
    // Before its first turn it waits for the runtime, which is judged above.
    if pod_loop != 0 && silent(pod_loop) > PATIENCE {
        return Err(format!("the pod loop has not turned for {} s", silent(pod_loop).as_secs()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_minutes_of_silence_are_unhealthy() {
        for (case, now, pod_loop, runtime, well) in [
            ("just started", 0, 0, 0, true),
            ("the runtime is waited for", 119_000, 0, 0, true),
            ("the runtime never came", 121_000, 0, 0, false),
            ("both are well", 500_000, 480_000, 499_000, true),
            ("the loop hangs", 500_000, 300_000, 499_000, false),
            ("the runtime hangs", 500_000, 499_000, 300_000, false),
        ] {
            assert_eq!(judge(now, pod_loop, runtime).is_ok(), well, "{case}");
        }
    }
}
