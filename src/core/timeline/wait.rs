//! One thing that a pod at rest waits for.

use jiff::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// `None`: the whole pod.
    pub container: Option<String>,
    pub what: String,
    /// What would change it.
    pub then: String,
    /// It is tried again then, whatever happens.
    pub retry_at: Option<Timestamp>,
    /// Which failure says more.
    pub detail: Option<Detail>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// The last one of the pod, whatever it was.
    Latest,
    /// The last one of the container's probes.
    Probe,
}

impl Wait {
    pub fn pod(what: impl Into<String>, then: impl Into<String>) -> Self {
        Self { container: None, what: what.into(), then: then.into(), retry_at: None, detail: None }
    }

    #[must_use]
    pub fn of(self, container: &str) -> Self {
        Self { container: Some(container.to_owned()), ..self }
    }

    #[must_use]
    pub fn until(self, retry_at: Option<Timestamp>) -> Self {
        Self { retry_at, ..self }
    }

    #[must_use]
    pub fn see(self, detail: Detail) -> Self {
        Self { detail: Some(detail), ..self }
    }
}
