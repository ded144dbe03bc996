//! One pod on this node: what it was ordered to do, what its worker remembers, and what the outcome of an action means.
//!
//! `PodState` is the whole memory of a worker. `plan::advance` and `plan::plan` read it; `apply`, `observed` and the
//! other changes write it. All of it is pure, so that property tests can let any action fail at any moment.

mod apply;
mod change;
mod order;
mod resizing;
mod state;
#[cfg(test)]
mod tests;
mod urgent;

pub use apply::{
    ActionOutcome, Applied, SandboxFailure, SandboxFailureCause, StartFailure, StartRetry, Step, Stopped,
};
pub use order::{
    Admitted, Device, Directive, Eviction, Grant, HostMount, Order, PendingReason, PendingResize, ResizeOrder,
};
pub use state::{
    CleanUp, ContainerMemory, InstanceMemory, PodState, ResizeInProgress, ResizeMemory, SandboxMemory,
    Waiting,
};
pub use urgent::is_urgent;

pub use crate::volumes::{PodVolumes, VolumesState};
