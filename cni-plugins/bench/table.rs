//! Samples and how they are shown.

use std::io::{self, Write};
use std::time::Duration;

#[derive(Default, Clone)]
pub struct Samples(Vec<Duration>);

/// One line: a measurement of every contender, the reference first if it is there.
pub struct Row {
    pub what: String,
    pub samples: Vec<(&'static str, Samples)>,
}

impl Samples {
    pub fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// The value that the given share of samples stays below, in milliseconds.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort();
        let at = ((sorted.len() as f64 - 1.0) * share).round() as usize;
        sorted.get(at).map_or(f64::NAN, |d| d.as_secs_f64() * 1e3)
    }
}

pub fn print(rows: &[Row]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{:<32} {:>24} {:>24} {:>8}", "", "reference p50 / p90 ms", "ours p50 / p90 ms", "ratio")?;
    for row in rows {
        let show = |label: &str| {
            let found = row.samples.iter().find(|(l, _)| *l == label);
            found.map(|(_, s)| (s.quantile(0.5), s.quantile(0.9)))
        };
        let text = |v: Option<(f64, f64)>| v.map_or("-".to_owned(), |(a, b)| format!("{a:.1} / {b:.1}"));
        let (reference, ours) = (show("reference"), show("ours"));
        let ratio = match (reference, ours) {
            (Some((theirs, _)), Some((ours, _))) => format!("{:.2}", ours / theirs),
            _ => "-".to_owned(),
        };
        writeln!(out, "{:<32} {:>24} {:>24} {:>8}", row.what, text(reference), text(ours), ratio)?;
    }
    Ok(())
}
