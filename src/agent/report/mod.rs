//! What the agent reports: pod status to the apiserver, and everything that the node's API and the local socket show.

mod events;
pub mod exposition;
pub mod handle;
pub mod log_end;
pub mod metrics;
pub mod resize_metrics;
pub mod start_metrics;
pub mod stats;
pub mod status_writer;

use keelson_apiserver::EventRecorder;
use keelson_host::logs::LogWatch;

use crate::node::pulse::Pulse;

/// Where reports go, and what they are made of.
pub struct Reports {
    pub events: EventRecorder,
    pub statuses: status_writer::StatusWriter,
    pub pulse: Pulse,
    /// Shared by everybody who follows a log.
    pub log_watch: LogWatch,
    pub metrics: metrics::Metrics,
    pub stats: stats::StatsMemory,
}
