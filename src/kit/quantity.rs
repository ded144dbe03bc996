//! Kubernetes quantities as exact numbers: `250m`, `1.5`, `64Mi`, `2G`, `1e3`.
//!
//! Read and written as Kubernetes does it: what is finer than a billionth is rounded up, what is larger than 2^63-1 is capped,
//! and the shortest exact text in the notation of the input is what comes out.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Add;
use std::str::FromStr;

/// An exact amount, in billionths, with the notation it was written in. Two amounts are equal when their values are,
/// however they were written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Amount {
    nanos: i128,
    notation: Notation,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Notation {
    #[default]
    Decimal,
    Binary,
    Exponent,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("quantity {text:?} {problem}; right would be such as 250m, 1.5, 64Mi, 2G or 1e3")]
pub struct BadQuantity {
    pub text: String,
    pub problem: &'static str,
}

const NANOS: i128 = 1_000_000_000;
/// Larger values are capped, as the API caps them: nobody has 2^63 of anything.
const MAX: i128 = (i64::MAX as i128) * NANOS;

impl Amount {
    pub const ZERO: Amount = Amount { nanos: 0, notation: Notation::Decimal };

    fn parse(text: &str) -> Result<Amount, BadQuantity> {
        let bad = |problem| BadQuantity { text: text.chars().take(64).collect(), problem };
        let (negative, unsigned) = match text.strip_prefix(['+', '-']) {
            Some(rest) => (text.starts_with('-'), rest),
            None => (false, text),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return Err(bad("has no number"));
        }
        if fraction.contains('.') {
            return Err(bad("has two decimal points"));
        }
        let unit = Unit::parse(suffix).ok_or_else(|| bad("has a suffix that Kubernetes does not know"))?;
        let nanos = unit.scale(whole, fraction).min(MAX);
        Ok(Amount { nanos: if negative { -nanos } else { nanos }, notation: unit.notation() })
    }

    pub fn from_milli(milli: i64) -> Amount {
        Amount { nanos: i128::from(milli) * (NANOS / 1000), notation: Notation::Decimal }
    }

    pub fn from_bytes(bytes: i64) -> Amount {
        Amount { nanos: i128::from(bytes) * NANOS, notation: Notation::Binary }
    }

    /// In thousandths, rounded away from zero: whoever asks for a little must not be given nothing.
    pub fn milli(self) -> i64 {
        clamp(div_away(self.nanos, NANOS / 1000))
    }

    /// In whole units (bytes, devices), rounded away from zero.
    pub fn value(self) -> i64 {
        clamp(div_away(self.nanos, NANOS))
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub fn is_positive(self) -> bool {
        self.nanos > 0
    }
}

impl FromStr for Amount {
    type Err = BadQuantity;
    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        Self::parse(text)
    }
}

/// The shortest exact text in the notation the amount was written in, as the API server would print it.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.nanos % NANOS == 0;
        let units = self.nanos / NANOS;
        if self.notation == Notation::Binary && whole && units.abs() >= 1024 {
            let mut rest = units;
            let mut suffix = "";
            for larger in BINARY {
                if rest % 1024 != 0 {
                    break;
                }
                rest /= 1024;
                suffix = larger;
            }
            return write!(f, "{rest}{suffix}");
        }
        if self.nanos == 0 {
            return f.write_str("0");
        }
        // Decimal: in steps of a thousand, from billionths upwards.
        let mut rest = self.nanos;
        let mut power = -9;
        while rest % 1000 == 0 && power < 18 {
            rest /= 1000;
            power += 3;
        }
        match (self.notation, power) {
            (_, 0) => write!(f, "{rest}"),
            (Notation::Exponent, power) => write!(f, "{rest}e{power}"),
            (_, power) => {
                let suffix = DECIMAL.iter().find(|(_, of)| *of == power).map_or("", |(suffix, _)| suffix);
                write!(f, "{rest}{suffix}")
            }
        }
    }
}

const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [(&str, i32); 9] =
    [("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

enum Unit {
    Ten(i32, Notation),
    Two(u32),
}

impl Unit {
    fn parse(suffix: &str) -> Option<Unit> {
        if suffix.is_empty() {
            return Some(Unit::Ten(0, Notation::Decimal));
        }
        if let Some(index) = BINARY.iter().position(|s| *s == suffix) {
            return Some(Unit::Two(10 * (index as u32 + 1)));
        }
        if let Some((_, power)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
            return Some(Unit::Ten(*power, Notation::Decimal));
        }
        let exponent = suffix.strip_prefix(['e', 'E'])?;
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        // Past these bounds every value is the largest or the smallest one anyway.
        let size = digits.parse::<i32>().unwrap_or(i32::MAX).min(1000);
        Some(Unit::Ten(if exponent.starts_with('-') { -size } else { size }, Notation::Exponent))
    }

    fn notation(&self) -> Notation {
        match self {
            Unit::Ten(_, notation) => *notation,
            Unit::Two(_) => Notation::Binary,
        }
    }

    /// The number in billionths. What is smaller than one of them counts as one.
    fn scale(&self, whole: &str, fraction: &str) -> i128 {
        let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').collect();
        let (power, factor) = match self {
            Unit::Ten(power, _) => (*power, 1i128),
            Unit::Two(bits) => (0, 1i128 << bits),
        };
        // value = digits * factor * 10^shift, in billionths
        let shift = i64::from(power) + 9 - fraction.len() as i64;
        let mut value = 0i128;
        for digit in digits {
            value = match value.checked_mul(10).and_then(|v| v.checked_add(i128::from(digit))) {
                Some(v) => v,
                None => return MAX,
            };
        }
        value = match value.checked_mul(factor) {
            Some(v) => v,
            None => return MAX,
        };
        if value == 0 {
            return 0;
        }
        for _ in 0..shift.unsigned_abs() {
            if shift > 0 {
                value = value.saturating_mul(10);
                if value > MAX {
                    return MAX;
                }
            } else {
                // Rounding up at each step equals rounding up once.
                value = div_away(value, 10);
                if value == 1 {
                    return 1;
                }
            }
        }
        value
    }
}

fn div_away(value: i128, by: i128) -> i128 {
    let rest = value % by;
    value / by + if rest == 0 { 0 } else { rest.signum() }
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Amount {}
impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Amount {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}
impl Add for Amount {
    type Output = Amount;
    /// Keeps the notation of the left side, unless that is an empty start.
    fn add(self, other: Amount) -> Amount {
        let notation = if self.nanos == 0 { other.notation } else { self.notation };
        Amount { nanos: self.nanos.saturating_add(other.nanos).clamp(-MAX, MAX), notation }
    }
}

#[cfg(test)]
mod tests;
