//! Durations as Kubernetes writes them: `10s`, `1h30m`, `1.5h`, `100ms`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A signed duration with nanosecond precision. A few fields use a negative one to switch something off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Period(i64);

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl Period {
    pub const ZERO: Self = Self(0);

    pub const fn millis(n: i64) -> Self {
        Self(n * 1_000_000)
    }
    pub const fn seconds(n: i64) -> Self {
        Self(n * 1_000_000_000)
    }
    pub const fn minutes(n: i64) -> Self {
        Self(n * 60_000_000_000)
    }
    pub const fn hours(n: i64) -> Self {
        Self(n * 3_600_000_000_000)
    }
    pub const fn nanos(n: i64) -> Self {
        Self(n)
    }

    /// What a timer can use: a negative period counts as none at all.
    pub fn get(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
    pub fn is_negative(self) -> bool {
        self.0 < 0
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration: write a number and a unit, such as \"10s\", \"1m30s\" or \"2h\"")]
pub struct BadPeriod(String);

impl FromStr for Period {
    type Err = BadPeriod;

    fn from_str(text: &str) -> Result<Self, BadPeriod> {
        parse(text).map(Self).ok_or_else(|| BadPeriod(text.into()))
    }
}

fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(scaled(number, *scale)?)?;
        rest = after;
    }
    Some(if negative { -total } else { total })
}

/// `number` times `scale` in integers, so that no digit is lost to floating point.
fn scaled(number: &str, scale: i64) -> Option<i64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let mut value = if whole.is_empty() { 0 } else { whole.parse::<i64>().ok()?.checked_mul(scale)? };
    let mut unit = scale;
    for digit in fraction.bytes() {
        unit /= 10;
        value = value.checked_add(i64::from(digit - b'0').checked_mul(unit)?)?;
    }
    Some(value)
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, nanos) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        f.write_str(sign)?;
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => write!(f, "{}µs", decimal(nanos, 1_000)),
            1_000_000..1_000_000_000 => write!(f, "{}ms", decimal(nanos, 1_000_000)),
            _ => {
                let (minutes, rest) = (nanos / 60_000_000_000, nanos % 60_000_000_000);
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                write!(f, "{}s", decimal(rest, 1_000_000_000))
            }
        }
    }
}

fn decimal(value: u64, unit: u64) -> String {
    let (whole, part) = (value / unit, value % unit);
    if part == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    format!("{whole}.{}", format!("{part:0width$}").trim_end_matches('0'))
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Period;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"10s\", \"1m30s\" or \"2h\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
                if text.is_empty() { Ok(Period::ZERO) } else { text.parse().map_err(E::custom) }
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print_as_the_kubelet_does() {
        for (text, printed) in [
            ("10s", "10s"),
            ("0", "0s"),
            ("90s", "1m30s"),
            ("1h", "1h0m0s"),
            ("1h30m", "1h30m0s"),
            ("1.5h", "1h30m0s"),
            ("100ms", "100ms"),
            ("1.25s", "1.25s"),
            ("1500us", "1.5ms"),
            ("-1s", "-1s"),
            ("20ns", "20ns"),
        ] {
            let period: Period = text.parse().unwrap();
            assert_eq!(period.to_string(), printed, "{text}");
            assert_eq!(printed.parse::<Period>().unwrap(), period, "{text} did not survive printing");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused_with_examples() {
        for bad in ["10", "s", "", "10 s", "1d", "1.2.3s", "ten", "99999999999h", "."] {
            let error = bad.parse::<Period>().unwrap_err().to_string();
            assert!(error.contains("10s"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_negative_period_is_no_time_at_all_to_a_timer() {
        assert_eq!("-5s".parse::<Period>().unwrap().get(), Duration::ZERO);
        assert_eq!(Period::minutes(2).get(), Duration::from_secs(120));
    }
}
