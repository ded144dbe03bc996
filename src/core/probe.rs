//! Probes, stepped: a result and the settings in, the next state and a verdict out. Who runs them is not decided here.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};

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

/// What one run of a probe came to. `Unknown` is a probe that could not be carried out: it proves nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Success,
    Failure(String),
    Unknown(String),
}

/// A probe's memory: the verdict that stands and the run of equal outcomes that may overturn it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeState {
    pub passing: bool,
    pub successes: u32,
    pub failures: u32,
}

impl ProbeState {
    pub fn new(kind: ProbeKind) -> Self {
        Self { passing: kind.initially(), successes: 0, failures: 0 }
    }

    #[must_use]
    pub fn step(self, settings: &ProbeSettings, outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Success => {
                let successes = self.successes.saturating_add(1);
                Self {
                    passing: self.passing || successes >= settings.success_threshold,
                    successes,
                    failures: 0,
                }
            }
            Outcome::Failure(_) => {
                let failures = self.failures.saturating_add(1);
                Self {
                    passing: self.passing && failures < settings.failure_threshold,
                    successes: 0,
                    failures,
                }
            }
            Outcome::Unknown(_) => self,
        }
    }

    /// Startup and liveness end a container once they have failed often enough; readiness never does.
    pub fn condemns(&self, kind: ProbeKind, settings: &ProbeSettings) -> bool {
        kind != ProbeKind::Readiness && self.failures >= settings.failure_threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(success: u32, failure: u32) -> ProbeSettings {
        let second = Duration::from_secs(1);
        ProbeSettings {
            initial_delay: second,
            period: second,
            timeout: second,
            success_threshold: success,
            failure_threshold: failure,
        }
    }

    fn run(kind: ProbeKind, s: &ProbeSettings, outcomes: &str) -> (bool, bool) {
        let end = outcomes.chars().fold(ProbeState::new(kind), |state, c| {
            let outcome = match c {
                '+' => Outcome::Success,
                '-' => Outcome::Failure("no".into()),
                _ => Outcome::Unknown("?".into()),
            };
            state.step(s, &outcome)
        });
        (end.passing, end.condemns(kind, s))
    }

    #[test]
    fn verdicts_follow_runs_of_equal_outcomes() {
        use ProbeKind::*;
        for (name, kind, s, outcomes, expected) in [
            ("readiness starts as not ready", Readiness, settings(1, 3), "", (false, false)),
            ("one success makes ready", Readiness, settings(1, 3), "+", (true, false)),
            ("two are needed when asked for", Readiness, settings(2, 3), "+", (false, false)),
            ("a failure between starts the count again", Readiness, settings(2, 3), "+-+", (false, false)),
            ("two failures of three are forgiven", Readiness, settings(1, 3), "+--", (true, false)),
            ("three are not, but nothing is killed", Readiness, settings(1, 3), "+---", (false, false)),
            ("liveness starts as alive", Liveness, settings(1, 3), "", (true, false)),
            ("liveness condemns at its threshold", Liveness, settings(1, 3), "---", (false, true)),
            ("a probe that could not run proves nothing", Liveness, settings(1, 3), "--?", (true, false)),
            ("and does not break the run either", Liveness, settings(1, 3), "--?-", (false, true)),
            ("startup starts as not started", Startup, settings(1, 3), "--", (false, false)),
            ("startup condemns too", Startup, settings(1, 3), "---", (false, true)),
            ("started once is started", Startup, settings(1, 3), "--+", (true, false)),
        ] {
            assert_eq!(run(kind, &s, outcomes), expected, "{name}");
        }
    }

    #[test]
    fn zero_and_negative_settings_become_the_defaults() {
        let p = Probe { period_seconds: Some(0), failure_threshold: Some(-2), ..Default::default() };
        let s = ProbeSettings::from(&p);
        assert_eq!((s.period.as_secs(), s.timeout.as_secs(), s.failure_threshold), (10, 1, 3));
    }
}
