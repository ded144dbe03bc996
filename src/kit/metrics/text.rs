//! Writes the text format, family by family.

use std::fmt::{Display, Write};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug, Default)]
pub struct Text {
    out: String,
    family: &'static str,
    /// Milliseconds that every sample carries, where values are measured and not kept.
    at_millis: Option<i64>,
}

impl Text {
    pub fn measured_at(millis: i64) -> Self {
        Self { at_millis: Some(millis), ..Self::default() }
    }

    /// What follows carries no time.
    pub fn not_measured(&mut self) {
        self.at_millis = None;
    }

    /// Begins a family. Samples that follow are its own.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.family = name;
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.suffixed("", labels, value);
    }

    /// A value that is not known is not a sample.
    pub fn known(&mut self, labels: &[(&str, &str)], value: Option<impl Display>) {
        if let Some(value) = value {
            self.sample(labels, value);
        }
    }

    /// A family of one sample.
    pub fn single(&mut self, name: &'static str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(&[], value);
    }

    pub(super) fn suffixed(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.out.push_str(self.family);
        self.out.push_str(suffix);
        let mut separator = '{';
        for (name, value) in labels {
            self.out.push(separator);
            separator = ',';
            self.out.push_str(name);
            self.out.push_str("=\"");
            escape(value, &mut self.out);
            self.out.push('"');
        }
        if separator == ',' {
            self.out.push('}');
        }
        let _ = match self.at_millis {
            Some(at) => writeln!(self.out, " {value} {at}"),
            None => writeln!(self.out, " {value}"),
        };
    }

    pub fn finish(self) -> String {
        self.out
    }
}

fn escape(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_and_samples_are_written() {
        let mut text = Text::default();
        text.single("up", Kind::Gauge, "Whether it is.", 1);
        text.family("used_total", Kind::Counter, "How much.");
        text.at_millis = Some(1500);
        text.sample(&[("name", "a\"b\\c\nd"), ("x", "")], 1.5);
        text.known(&[], None::<u64>);
        let expected = "# HELP up Whether it is.\n# TYPE up gauge\nup 1\n# HELP used_total How much.\n\
                        # TYPE used_total counter\nused_total{name=\"a\\\"b\\\\c\\nd\",x=\"\"} 1.5 1500\n";
        assert_eq!(text.finish(), expected);
    }
}
