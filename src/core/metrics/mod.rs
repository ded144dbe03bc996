//! Metrics in Prometheus' text format: what writes them, and the few kinds that the agent keeps itself.

mod histogram;
mod text;

pub use histogram::{Histogram, LabelledCounter, LabelledHistogram};
pub use text::{Kind, Text};

/// What a scraper must be told.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
