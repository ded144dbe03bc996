//! Samples and counts, and how they are shown: a column for each contender, and how ours compares to each of the others.

use std::io::{self, Write};
use std::time::Duration;

#[derive(Default, Clone)]
pub struct Samples(Vec<Duration>);

/// One line: a measurement of every contender, in the order of the columns.
pub struct Row {
    pub what: String,
    pub cells: Vec<Cell>,
}

pub enum Cell {
    Times(Samples),
    /// None where this machine cannot count it.
    Count(Option<u64>),
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

impl Cell {
    fn text(&self) -> String {
        match self {
            Cell::Times(samples) => format!("{:.1} / {:.1} ms", samples.quantile(0.5), samples.quantile(0.9)),
            Cell::Count(Some(count)) => count.to_string(),
            Cell::Count(None) => "-".into(),
        }
    }

    /// What is compared: the median, or the count.
    fn value(&self) -> Option<f64> {
        match self {
            Cell::Times(samples) => Some(samples.quantile(0.5)),
            Cell::Count(count) => count.map(|n| n as f64),
        }
    }
}

/// Ours is the last column.
pub fn print(labels: &[&str], rows: &[Row]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{:<40}", "times are p50 / p90")?;
    for label in labels {
        write!(out, " {label:>20}")?;
    }
    let (_, others) = labels.split_last().unwrap_or((&"", &[]));
    for other in others {
        write!(out, " {:>14}", format!("to {other}"))?;
    }
    writeln!(out)?;
    for row in rows {
        write!(out, "{:<40}", row.what)?;
        for cell in &row.cells {
            write!(out, " {:>20}", cell.text())?;
        }
        let ours = row.cells.last().and_then(Cell::value);
        for other in row.cells.iter().take(others.len()) {
            let ratio =
                ours.zip(other.value()).map_or("-".into(), |(own, other)| format!("{:.2}", own / other));
            write!(out, " {ratio:>14}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
