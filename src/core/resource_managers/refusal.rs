//! Which manager refuses a pod, and what its status says then.

use crate::admission::Rejection;
use crate::{cpu_manager, memory_manager};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("Resources cannot be allocated with Topology locality")]
    Topology,
    #[error(transparent)]
    Cpu(#[from] cpu_manager::Refusal),
    #[error(transparent)]
    Memory(#[from] memory_manager::Refusal),
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        let reason = match &refusal {
            Refusal::Topology => "TopologyAffinityError",
            Refusal::Cpu(refusal) => refusal.reason(),
            Refusal::Memory(_) => UNEXPECTED,
        };
        let message = match reason {
            UNEXPECTED => format!("Allocate failed due to {refusal}, which is unexpected"),
            _ => refusal.to_string(),
        };
        Self { reason: reason.into(), message }
    }
}

const UNEXPECTED: &str = "UnexpectedAdmissionError";
