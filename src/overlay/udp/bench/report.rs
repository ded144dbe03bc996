//! The table at the end: medians over the rounds, and how they compare to flanneld's.

use std::collections::BTreeMap;

use crate::contender::{FLANNELD, KEELSON, MANY};
use crate::traffic::Streamed;

#[derive(Default)]
pub struct Figures {
    values: BTreeMap<(usize, &'static str), Vec<f64>>,
}

/// What is shown, in this order, with its unit and decimals.
const ROWS: [(&str, usize); 7] = [
    ("TCP, one stream, Gbit/s", 2),
    ("  CPU seconds per Gbit", 3),
    ("TCP, eight streams, Gbit/s", 2),
    ("  CPU seconds per Gbit", 3),
    ("UDP, 64 bytes, packets/s", 0),
    ("ping, median, ms", 3),
    ("resident memory, MiB", 1),
];

impl Figures {
    pub fn add(&mut self, who: &'static str, what: &str, streamed: Streamed) {
        let row = if what.contains("one") { 0 } else { 2 };
        self.push(row, who, streamed.gigabits);
        self.push(row + 1, who, streamed.cpu_seconds_per_gigabit);
    }

    pub fn add_rate(&mut self, who: &'static str, rate: f64) {
        self.push(4, who, rate);
    }

    pub fn add_ping(&mut self, who: &'static str, ping: f64) {
        self.push(5, who, ping);
    }

    pub fn set_memory(&mut self, who: &'static str, memory: Option<f64>) {
        self.values.insert((6, who), memory.into_iter().collect());
    }

    fn push(&mut self, row: usize, who: &'static str, value: f64) {
        self.values.entry((row, who)).or_default().push(value);
    }

    fn median(&self, row: usize, who: &'static str) -> Option<f64> {
        let mut values = self.values.get(&(row, who))?.clone();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    pub fn print(&self, names: &[&'static str]) {
        print!("{:<28}", "");
        names.iter().for_each(|name| print!("{name:>17}"));
        println!();
        for (row, (what, decimals)) in ROWS.iter().enumerate() {
            print!("{what:<28}");
            for name in names {
                match self.median(row, name) {
                    Some(value) => print!("{value:>17.decimals$}"),
                    None => print!("{:>17}", "-"),
                }
            }
            println!();
        }
        for (row, what, reach) in
            [(0, "one TCP stream", 10.0), (2, "eight TCP streams", 10.0), (4, "small packets", 3.0)]
        {
            if let (Some(ours), Some(theirs)) = (self.median(row, KEELSON), self.median(row, FLANNELD)) {
                println!("{what}: {:.1} times flanneld's, to reach is {reach:.0}", ours / theirs);
            }
        }
        if let (Some(two), Some(many)) = (self.median(6, KEELSON), self.median(6, MANY)) {
            println!("resident memory: {two:.1} and {many:.1} MiB, to reach is 10");
        }
    }
}
