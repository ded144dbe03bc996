//! Counters and histograms that are written from many tasks and read by a scrape.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::text::{Kind, Text};

/// How often each combination of labels was counted. The label values must come from a small, fixed set.
#[derive(Debug, Default)]
pub struct LabelledCounter<const N: usize>(Mutex<BTreeMap<[String; N], u64>>);

impl<const N: usize> LabelledCounter<N> {
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub fn count(&self, labels: [&str; N]) {
        let mut counts = lock(&self.0);
        // Looked for first, since it is there nearly always and a key of its own costs allocations.
        if let Some((_, n)) =
            counts.iter_mut().find(|(known, _)| known.iter().zip(labels).all(|(a, b)| a == b))
        {
            *n += 1;
            return;
        }
        counts.insert(labels.map(str::to_owned), 1);
    }

    pub fn write(&self, text: &mut Text, name: &'static str, names: [&str; N], help: &str) {
        text.family(name, Kind::Counter, help);
        for (values, n) in lock(&self.0).iter() {
            let labels: Vec<_> = names.iter().zip(values).map(|(n, v)| (*n, v.as_str())).collect();
            text.sample(&labels, n);
        }
    }
}

/// Durations in seconds, counted by size.
#[derive(Debug, Clone)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0, count: 0 }
    }

    pub fn observe(&mut self, seconds: f64) {
        if let Some(n) = self.bounds.iter().position(|b| seconds <= *b).and_then(|i| self.counts.get_mut(i)) {
            *n += 1;
        }
        self.sum += seconds;
        self.count += 1;
    }

    /// Within a family that has been begun.
    pub fn write(&self, text: &mut Text, labels: &[(&str, &str)]) {
        let mut below = 0;
        for (bound, n) in self.bounds.iter().zip(&self.counts) {
            below += n;
            text.suffixed("_bucket", &[labels, &[("le", &bound.to_string())]].concat(), below);
        }
        text.suffixed("_bucket", &[labels, &[("le", "+Inf")]].concat(), self.count);
        text.suffixed("_sum", labels, self.sum);
        text.suffixed("_count", labels, self.count);
    }
}

/// A histogram for each value of one label, which must come from a small, fixed set.
#[derive(Debug)]
pub struct LabelledHistogram {
    bounds: &'static [f64],
    all: Mutex<BTreeMap<String, Histogram>>,
}

impl LabelledHistogram {
    pub const fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, all: Mutex::new(BTreeMap::new()) }
    }

    pub fn observe(&self, label: &str, seconds: f64) {
        let mut all = lock(&self.all);
        // Looked for first, since it is there nearly always and a key of its own is an allocation.
        if let Some(known) = all.get_mut(label) {
            return known.observe(seconds);
        }
        let mut new = Histogram::new(self.bounds);
        new.observe(seconds);
        all.insert(label.to_owned(), new);
    }

    pub fn write(&self, text: &mut Text, name: &'static str, label: &str, help: &str) {
        text.family(name, Kind::Histogram, help);
        for (value, histogram) in lock(&self.all).iter() {
            histogram.write(text, &[(label, value)]);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_what_is_at_most_their_bound() {
        let all = LabelledHistogram::new(&[0.1, 1.0]);
        for seconds in [0.05, 0.1, 0.5, 7.0] {
            all.observe("x", seconds);
        }
        let mut text = Text::default();
        all.write(&mut text, "took_seconds", "op", "Time.");
        let text = text.finish();
        let body: Vec<_> = text.lines().skip(2).collect();
        let expected = [
            "took_seconds_bucket{op=\"x\",le=\"0.1\"} 2",
            "took_seconds_bucket{op=\"x\",le=\"1\"} 3",
            "took_seconds_bucket{op=\"x\",le=\"+Inf\"} 4",
            "took_seconds_sum{op=\"x\"} 7.65",
            "took_seconds_count{op=\"x\"} 4",
        ];
        assert_eq!(body, expected);
    }

    #[test]
    fn counts_are_kept_by_label() {
        let counter = LabelledCounter::<2>::default();
        for labels in [["a", "x"], ["b", "x"], ["a", "x"]] {
            counter.count(labels);
        }
        let mut text = Text::default();
        counter.write(&mut text, "n_total", ["k", "l"], "Counts.");
        assert!(text.finish().ends_with("n_total{k=\"a\",l=\"x\"} 2\nn_total{k=\"b\",l=\"x\"} 1\n"));
    }
}
