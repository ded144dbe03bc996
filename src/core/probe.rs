//! Probes: which of them run and when, what a run of one came to, and what follows from it. Pure: who runs them, and the
//! time, are not decided here.

mod http;
mod verdict;

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};

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
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSettings {
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
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
    use super::*;

    #[test]
    fn zero_and_negative_settings_become_the_defaults() {
        let p = Probe { period_seconds: Some(0), failure_threshold: Some(-2), ..Default::default() };
        let s = ProbeSettings::from(&p);
        assert_eq!((s.period.as_secs(), s.timeout.as_secs(), s.failure_threshold), (10, 1, 3));
    }
}
