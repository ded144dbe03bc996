//! A probe, stepped: an outcome and the settings in, the next state and a verdict out.

use super::{ProbeKind, ProbeSettings};
use crate::plan::PlannedEvent;

/// What one run of a probe came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// A success that somebody should know about.
    Warning(String),
    Failure(String),
    /// It could not be carried out, or its answer not be read: it proves nothing.
    Unknown(String),
}

impl Outcome {
    /// In the words that people and alerts know from a kubelet.
    pub fn event(&self, kind: ProbeKind) -> Option<PlannedEvent> {
        let title = kind.title();
        let (reason, message) = match self {
            Self::Success => return None,
            Self::Warning(why) => ("ProbeWarning", format!("{title} probe warning: {why}")),
            Self::Failure(why) => ("Unhealthy", format!("{title} probe failed: {why}")),
            Self::Unknown(why) => {
                ("Unhealthy", format!("{title} probe errored and resulted in unknown state: {why}"))
            }
        };
        Some(PlannedEvent::warning(reason, message))
    }
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
            Outcome::Success | Outcome::Warning(_) => {
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
    use std::time::Duration;

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
                '!' => Outcome::Warning("elsewhere".into()),
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
            ("a success with a warning is one", Readiness, settings(1, 3), "!", (true, false)),
            ("also between failures", Liveness, settings(1, 3), "--!--", (true, false)),
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
    fn what_was_found_is_reported_in_known_words() {
        let word = |text: &str| text.to_owned();
        for (outcome, expected) in [
            (Outcome::Success, None),
            (Outcome::Warning(word("moved")), Some("ProbeWarning: Readiness probe warning: moved")),
            (Outcome::Failure(word("no file")), Some("Unhealthy: Readiness probe failed: no file")),
            (
                Outcome::Unknown(word("no runtime")),
                Some("Unhealthy: Readiness probe errored and resulted in unknown state: no runtime"),
            ),
        ] {
            let event = outcome.event(ProbeKind::Readiness);
            assert!(event.iter().all(|e| e.warning));
            let said = event.map(|e| format!("{}: {}", e.reason, e.message));
            assert_eq!(said.as_deref(), expected);
        }
    }
}
