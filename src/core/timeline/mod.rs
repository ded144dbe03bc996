//! The record of a pod's life: when each step began, how long it took, where that time went, what failed, and what the pod
//! waits for now. Whoever acts for a pod writes it, `keelson why` and the metrics of pod starts read it, so that nothing is
//! measured twice.
//!
//! Architecture invariant: a record has a bound, whatever the pod does and however often. A step that is repeated is one row
//! with a count, failures are a few, and the pods that are gone are so many.

mod failure;
mod find;
mod going;
mod latency;
mod moment;
mod record;
mod remembered;
mod report;
mod row;
mod step;
#[cfg(test)]
mod tests;
mod view;
mod wait;
mod waits;

pub use find::{Found, Known, Query, find};
pub use going::{Beginning, asked_at, bound_at, exit_cause};
pub use latency::StartLatency;
pub use moment::Moment;
pub use record::PodTimeline;
pub use remembered::{REMEMBERED, Remembered};
pub use report::{FailureReport, OtherPod, PlaceTime, StageReport, StepReport, WaitReport, WhyReport};
pub use row::{Ending, Note};
pub use step::{Place, Stage, Step};
pub use view::{refused, span};
pub use wait::{Detail, Wait};
pub use waits::{WaitInput, is_settled, waits};
