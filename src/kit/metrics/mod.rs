//! Metrics in Prometheus' text format: what writes them, and the few kinds that are kept in memory.

mod counters;
mod text;

pub use counters::{Histogram, LabelledCounter, LabelledHistogram};
pub use text::{Kind, Text};

/// The content type that scrapers expect.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
