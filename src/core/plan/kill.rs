//! The end of containers: how long each has for it, and which of them wait for others.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;

use super::container::{ContainerKind, init_kind};
use crate::ids::ContainerId;

/// However much of the grace period a hook or the wait for a turn has used up, a process is not killed sooner than this after
/// its stop signal.
const LEAST_WINDOW: i64 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    pub id: ContainerId,
    pub name: String,
    /// For hook, turn and process together. Without any, the hook does not run.
    pub grace_seconds: i64,
    /// What the Killing event says.
    pub message: String,
    /// The container runs again whatever it exits with. Without it the restart policy decides, as after any exit.
    pub restart: Option<Restart>,
    /// Those that end before this one gets its stop signal. Its preStop hook waits for nobody.
    pub after: Vec<ContainerId>,
}

/// A restart that this agent has decided on, because a probe failed or the container's definition changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// When the instance before ended: the back-off counts from there, because nobody is to blame for being ended by the
    /// agent. `None`: there was none, and nothing is counted.
    pub counted_from: Option<Timestamp>,
}

impl Kill {
    /// What is left of the grace period for the hook, and then for the turn.
    pub fn patience(&self, spent: Duration) -> Duration {
        let grace = Duration::from_secs(u64::try_from(self.grace_seconds).unwrap_or(0));
        grace.saturating_sub(spent)
    }

    /// Seconds between the stop signal and SIGKILL.
    pub fn signal_window(&self, spent: Duration) -> i64 {
        let spent = i64::try_from(spent.as_secs()).unwrap_or(i64::MAX);
        self.grace_seconds.saturating_sub(spent).max(LEAST_WINDOW)
    }
}

/// A sidecar serves until the main containers have ended, and until the sidecars have that started after it.
pub(super) fn take_turns(spec: &PodSpec, kills: &mut [Kill]) {
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let sidecar =
        |k: &Kill| inits.iter().position(|c| c.name == k.name && init_kind(c) == ContainerKind::Sidecar);
    let served = |k: &Kill, by: usize| {
        spec.containers.iter().any(|c| c.name == k.name) || sidecar(k).is_some_and(|other| other > by)
    };
    let turns: Vec<Vec<ContainerId>> = kills
        .iter()
        .map(|k| match sidecar(k) {
            Some(own) => kills.iter().filter(|k| served(k, own)).map(|k| k.id.clone()).collect(),
            None => vec![],
        })
        .collect();
    for (kill, after) in kills.iter_mut().zip(turns) {
        kill.after = after;
    }
}
