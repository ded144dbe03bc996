//! The figures and the table made of them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use crate::contender::{Many, Took};

/// What the project set itself, as parts of this run's floor or as absolute figures.
const START_REACH: f64 = 1.25;
const STOP_REACH: f64 = 1.5;
const RSS_REACH: f64 = 25.0;
const IDLE_REACH: f64 = 0.4;

pub const FLOOR: &str = "runtime alone";

#[derive(Default)]
pub struct Figures {
    took: BTreeMap<&'static str, Vec<Took>>,
    cpu: BTreeMap<&'static str, Duration>,
    floor_many: BTreeMap<u32, Took>,
    many: BTreeMap<(&'static str, u32), Many>,
}

impl Figures {
    pub fn add_floor(&mut self, took: Took) {
        self.add(FLOOR, took);
    }
    pub fn add(&mut self, who: &'static str, took: Took) {
        self.took.entry(who).or_default().push(took);
    }
    pub fn set_cpu_per_pod(&mut self, who: &'static str, cpu: Duration) {
        self.cpu.insert(who, cpu);
    }
    pub fn set_floor_many(&mut self, count: u32, took: Took) {
        self.floor_many.insert(count, took);
    }
    pub fn set_many(&mut self, who: &'static str, count: u32, many: Many) {
        self.many.insert((who, count), many);
    }

    /// Those that took part, the floor first.
    pub fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.took.keys().copied().filter(|n| *n != FLOOR).collect();
        names.insert(0, FLOOR);
        names
    }

    /// Every figure with its unit and its value for each that took part.
    pub fn rows(&self, many: u32) -> Vec<Row> {
        let few = many / 10;
        let ms = |of: fn(&Took) -> Duration, part: f64| {
            move |who: &'static str| self.quantile(who, of, part).map(|d| d.as_secs_f64() * 1e3)
        };
        let at_once = |count: u32, floor: fn(&Took) -> Duration, agent: fn(&Many) -> Duration| {
            move |who: &'static str| {
                let found = if who == FLOOR {
                    self.floor_many.get(&count).map(floor)
                } else {
                    self.of(who, count).map(agent)
                };
                found.map(|d| d.as_secs_f64())
            }
        };
        let agent = |count: u32, of: fn(&Many) -> f64| move |who: &'static str| self.of(who, count).map(of);
        vec![
            self.row("pod start, p50", "ms", ms(|t| t.start, 0.5)),
            self.row("pod start, p99", "ms", ms(|t| t.start, 0.99)),
            self.row("pod stop, p50", "ms", ms(|t| t.stop, 0.5)),
            self.row("pod stop, p99", "ms", ms(|t| t.stop, 0.99)),
            self.row(
                &format!("{few} pods at once, all ready"),
                "s",
                at_once(few, |t| t.start, |m| m.all_ready),
            ),
            self.row(&format!("{few} pods at once, all gone"), "s", at_once(few, |t| t.stop, |m| m.all_gone)),
            self.row(
                &format!("{many} pods at once, all ready"),
                "s",
                at_once(many, |t| t.start, |m| m.all_ready),
            ),
            self.row(
                &format!("{many} pods at once, all gone"),
                "s",
                at_once(many, |t| t.stop, |m| m.all_gone),
            ),
            self.row("agent CPU per pod", "ms", |who| self.cpu.get(who).map(|d| d.as_secs_f64() * 1e3)),
            self.row(&format!("agent CPU, {few} idle pods"), "% of a core", agent(few, |m| m.idle_cpu)),
            self.row(&format!("agent CPU, {many} idle pods"), "% of a core", agent(many, |m| m.idle_cpu)),
            self.row(&format!("agent RSS, {few} pods"), "MiB", agent(few, |m| m.rss)),
            self.row(&format!("agent RSS, {many} pods"), "MiB", agent(many, |m| m.rss)),
            self.row(&format!("of it anonymous, {many} pods"), "MiB", agent(many, |m| m.anonymous)),
        ]
    }

    fn row(&self, what: &str, unit: &'static str, of: impl Fn(&'static str) -> Option<f64>) -> Row {
        Row { what: what.into(), unit, values: self.names().into_iter().map(|who| (who, of(who))).collect() }
    }

    fn of(&self, who: &'static str, count: u32) -> Option<&Many> {
        self.many.get(&(who, count))
    }

    fn quantile(&self, who: &str, of: fn(&Took) -> Duration, part: f64) -> Option<Duration> {
        let mut all: Vec<Duration> = self.took.get(who)?.iter().map(of).collect();
        all.sort();
        let at = (part * all.len() as f64) as usize;
        all.get(at.min(all.len().checked_sub(1)?)).copied()
    }
}

pub struct Row {
    pub what: String,
    pub unit: &'static str,
    pub values: Vec<(&'static str, Option<f64>)>,
}

impl Row {
    pub fn value(&self, who: &str) -> Option<f64> {
        self.values.iter().find(|(name, _)| *name == who).and_then(|(_, v)| *v)
    }
}

pub fn table(figures: &Figures, many: u32) -> String {
    let rows = figures.rows(many);
    let mut out = String::new();
    let _ = write!(out, "{:<34}", "");
    for name in figures.names() {
        let _ = write!(out, "{name:>16}");
    }
    out.push('\n');
    for row in &rows {
        let _ = write!(out, "{:<34}", format!("{} ({})", row.what, row.unit));
        for (_, value) in &row.values {
            let shown = value.map(number).unwrap_or_else(|| "-".into());
            let _ = write!(out, "{shown:>16}");
        }
        out.push('\n');
    }
    out.push('\n');
    for (what, value, reach) in against_reach(&rows, many) {
        let verdict = if value <= reach { "reached" } else { "MISSED" };
        let _ = writeln!(out, "{what:<52} {value:>6.2} (reach {reach}): {verdict}");
    }
    for absent in ["keelson", "kubelet"].iter().filter(|n| !figures.names().contains(n)) {
        let _ = writeln!(out, "missing in this run: {absent}");
    }
    out
}

fn against_reach(rows: &[Row], many: u32) -> Vec<(String, f64, f64)> {
    let find = |what: &str| rows.iter().find(|r| r.what == what);
    let ratio = |what: &str, to: &str| -> Option<f64> {
        Some(find(what)?.value("keelson")? / find(what)?.value(to)?)
    };
    let own = |what: &str| find(what)?.value("keelson");
    let (idle, rss) = (format!("agent CPU, {many} idle pods"), format!("agent RSS, {many} pods"));
    let candidates = [
        ("start p50, times the runtime's own".to_owned(), ratio("pod start, p50", FLOOR), START_REACH),
        ("stop p50, times the runtime's own".to_owned(), ratio("pod stop, p50", FLOOR), STOP_REACH),
        (format!("{idle} (% of a core)"), own(&idle), IDLE_REACH),
        (format!("{rss} (MiB)"), own(&rss), RSS_REACH),
        ("start p50, times the kubelet's".to_owned(), ratio("pod start, p50", "kubelet"), 0.6),
        ("stop p50, times the kubelet's".to_owned(), ratio("pod stop, p50", "kubelet"), 0.35),
        ("agent CPU per pod, times the kubelet's".to_owned(), ratio("agent CPU per pod", "kubelet"), 0.15),
        (format!("{idle}, times the kubelet's"), ratio(&idle, "kubelet"), 0.05),
        (format!("{rss}, times the kubelet's"), ratio(&rss, "kubelet"), 0.2),
    ];
    candidates.into_iter().filter_map(|(what, value, reach)| Some((what, value?, reach))).collect()
}

pub fn number(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}
