//! Quantities (`500m`, `1Gi`) and eviction thresholds (`100Mi`, `10%`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A Kubernetes quantity, kept as it was written and known to be readable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Amount(String);

/// Where eviction starts: an absolute quantity, or a share of the capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threshold(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAmount {
    #[error(
        "{0:?} is not a quantity: write a number with an optional suffix, such as \"500m\", \"2\" or \"1Gi\""
    )]
    Quantity(String),
    #[error(
        "{0:?} is not a threshold: write a quantity such as \"100Mi\", or a percentage from \"0%\" to \"100%\""
    )]
    Threshold(String),
}

impl Amount {
    pub fn zero() -> Self {
        Self("0".into())
    }
    /// For defaults, which are known to be right.
    pub(super) fn of(text: &'static str) -> Self {
        Self(text.into())
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Thousandths, which is as fine as a node counts anything.
    pub fn milli(&self) -> i128 {
        milli(&self.0).unwrap_or(0)
    }
    /// Whole units (bytes, processes), rounded up.
    pub fn value(&self) -> i64 {
        let milli = self.milli();
        i64::try_from(milli.div_euclid(1000) + i128::from(milli.rem_euclid(1000) > 0)).unwrap_or(i64::MAX)
    }
}

impl Threshold {
    pub(super) fn of(text: &'static str) -> Self {
        Self(text.into())
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// The threshold in units of `capacity`.
    pub fn resolve(&self, capacity: u64) -> u64 {
        match self.0.strip_suffix('%') {
            Some(percent) => (percent.parse::<f64>().unwrap_or(0.0) / 100.0 * capacity as f64) as u64,
            None => u64::try_from(Amount(self.0.clone()).value()).unwrap_or(0),
        }
    }
}

impl FromStr for Amount {
    type Err = BadAmount;
    fn from_str(text: &str) -> Result<Self, BadAmount> {
        milli(text).map(|_| Self(text.into())).ok_or_else(|| BadAmount::Quantity(text.into()))
    }
}

impl FromStr for Threshold {
    type Err = BadAmount;
    fn from_str(text: &str) -> Result<Self, BadAmount> {
        let good = match text.strip_suffix('%') {
            Some(percent) => percent.parse::<f64>().is_ok_and(|p| (0.0..=100.0).contains(&p)),
            None => milli(text).is_some_and(|m| m >= 0),
        };
        if good { Ok(Self(text.into())) } else { Err(BadAmount::Threshold(text.into())) }
    }
}

/// Thousandths of the quantity, rounded up as Kubernetes rounds what is finer.
fn milli(text: &str) -> Option<i128> {
    let (negative, rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(digits);
    let (numerator, denominator) = scale(suffix)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || number.len() > 30 {
        return None;
    }
    let mut mantissa: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        mantissa = mantissa.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
    }
    let places = 10i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let top = mantissa.checked_mul(numerator)?.checked_mul(1000)?;
    let bottom = places.checked_mul(denominator)?;
    let rounded = top / bottom + i128::from(top % bottom > 0);
    Some(if negative { -rounded } else { rounded })
}

fn scale(suffix: &str) -> Option<(i128, i128)> {
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => (1_000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10i128.checked_pow(exponent.unsigned_abs()).filter(|_| exponent.abs() <= 18)?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

macro_rules! text_value {
    ($($ty:ident: $what:literal;)+) => {$(
        impl fmt::Display for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl Serialize for $ty {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $ty {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $ty;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str($what) }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$ty, E> {
                        text.parse().map_err(E::custom)
                    }
                    // A quantity without a suffix may stand without quotes.
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$ty, E> {
                        self.visit_str(&number.to_string())
                    }
                    fn visit_f64<E: de::Error>(self, number: f64) -> Result<$ty, E> {
                        self.visit_str(&number.to_string())
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
    )+};
}
text_value! {
    Amount: "a quantity such as \"500m\", \"2\" or \"1Gi\"";
    Threshold: "a threshold such as \"100Mi\" or \"10%\"";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_count_as_kubernetes_counts_them() {
        for (text, expected) in [
            ("0", 0),
            ("1", 1),
            ("100Mi", 100 << 20),
            ("1.5Gi", 3 << 29),
            ("500m", 1),
            ("1500m", 2),
            ("1e3", 1000),
            ("2E", 2_000_000_000_000_000_000),
            ("10k", 10_000),
            ("-1", -1),
        ] {
            assert_eq!(text.parse::<Amount>().unwrap().value(), expected, "{text}");
        }
        assert_eq!("200m".parse::<Amount>().unwrap().milli(), 200);
    }

    #[test]
    fn what_is_not_a_quantity_is_refused() {
        for bad in ["", "Mi", "1mi", "1 Gi", "1.2.3", "one", "1e99", "."] {
            assert!(bad.parse::<Amount>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_threshold_is_a_quantity_or_a_share_of_the_capacity() {
        assert_eq!("10%".parse::<Threshold>().unwrap().resolve(1000), 100);
        assert_eq!("1Ki".parse::<Threshold>().unwrap().resolve(1), 1024);
        for bad in ["101%", "-1%", "%", "-5Mi", "x"] {
            assert!(bad.parse::<Threshold>().is_err(), "{bad:?} was accepted");
        }
    }
}
