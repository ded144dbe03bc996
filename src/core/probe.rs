//! Probes: which of them run and when, what a run of one came to, and what follows from it. Pure: who runs them, and the
//! time, are not decided here.

mod command;
mod http;
mod verdict;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};

use crate::desired::Lifecycle;

pub use command::{CommandTooLong, exec_command};
pub use http::{AfterAnswer, HttpTarget, after_answer, judge_http};
pub use verdict::{Outcome, ProbeState};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }

    /// As events and messages name it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
        }
    }

    /// What holds until enough probes have said otherwise.
    pub fn initially(self) -> bool {
        self == Self::Liveness
    }

    /// A pod that is being ended drains: those who send it requests need to know when it takes no more, and nobody
    /// restarts anything in it.
    pub fn runs_in(self, lifecycle: &Lifecycle) -> bool {
        match lifecycle {
            Lifecycle::Syncing => true,
            Lifecycle::Terminating { .. } => self == Self::Readiness,
            Lifecycle::Terminated { .. } => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSettings {
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
}

impl ProbeSettings {
    /// When the run after the one of `due` is due, both as the time since the first. Runs are a period apart however long
    /// they take; where one took longer than that, the next follows at once, and the others that it missed are left out.
    pub fn next_run(&self, due: Duration, now: Duration) -> Duration {
        let late = now.saturating_sub(due).as_nanos();
        let periods = (late / self.period.as_nanos().max(1)).max(1);
        due.saturating_add(self.period.saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX)))
    }
}

impl From<&Probe> for ProbeSettings {
    fn from(p: &Probe) -> Self {
        let at_least = |value: Option<i32>, least: u32, default: u32| {
            value.and_then(|v| u32::try_from(v).ok()).filter(|v| *v >= least).unwrap_or(default)
        };
        Self {
            initial_delay: Duration::from_secs(at_least(p.initial_delay_seconds, 0, 0).into()),
            period: Duration::from_secs(at_least(p.period_seconds, 1, 10).into()),
            timeout: Duration::from_secs(at_least(p.timeout_seconds, 1, 1).into()),
            success_threshold: at_least(p.success_threshold, 1, 1),
            failure_threshold: at_least(p.failure_threshold, 1, 3),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::desired::TerminationReason;

    #[test]
    fn zero_and_negative_settings_become_the_defaults() {
        let p = Probe { period_seconds: Some(0), failure_threshold: Some(-2), ..Default::default() };
        let s = ProbeSettings::from(&p);
        assert_eq!((s.period.as_secs(), s.timeout.as_secs(), s.failure_threshold), (10, 1, 3));
    }

    #[test]
    fn runs_are_a_period_apart_however_long_they_take() {
        let settings = ProbeSettings::from(&Probe { period_seconds: Some(10), ..Default::default() });
        for (name, due, now, expected) in [
            ("a run that took no time", 0, 0, 10),
            ("one that took half a period", 10, 15, 20),
            ("one that took all of it", 10, 20, 20),
            ("one that took longer is followed at once", 10, 23, 20),
            ("and that one by the next tick", 20, 24, 30),
            ("what a long one missed is not made up for", 10, 57, 50),
            ("a clock that has not reached the run yet", 10, 5, 20),
        ] {
            let (due, now) = (Duration::from_secs(due), Duration::from_secs(now));
            assert_eq!(settings.next_run(due, now).as_secs(), expected, "{name}");
        }
    }

    #[test]
    fn readiness_alone_goes_on_while_a_pod_is_ended() {
        let reason = TerminationReason::Deleted;
        let ending = Lifecycle::Terminating { reason: reason.clone(), deadline: Timestamp::UNIX_EPOCH };
        for (name, lifecycle, expected) in [
            ("running", Lifecycle::Syncing, vec!["startup", "liveness", "readiness"]),
            ("being ended", ending, vec!["readiness"]),
            ("ended", Lifecycle::Terminated { reason }, vec![]),
        ] {
            let run = ProbeKind::ALL.into_iter().filter(|kind| kind.runs_in(&lifecycle));
            assert_eq!(run.map(ProbeKind::word).collect::<Vec<_>>(), expected, "{name}");
        }
    }
}
