//! Quantities and eviction thresholds, kept as they were written.

use std::fmt;
use std::str::FromStr;

use keelson_kit::quantity::Amount;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A Kubernetes quantity, kept as it was written and known to be readable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantityText(String);

/// Where eviction starts: an absolute quantity, or a share of the capacity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threshold(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadText {
    #[error(
        "{0:?} is not a quantity: write a number with an optional suffix, such as \"500m\", \"2\" or \"1Gi\""
    )]
    Quantity(String),
    #[error(
        "{0:?} is not a threshold: write a quantity such as \"100Mi\", or a percentage from \"0%\" to \"100%\""
    )]
    Threshold(String),
}

impl QuantityText {
    /// For defaults, which are known to be right.
    pub(super) fn of(text: &'static str) -> Self {
        Self(text.into())
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
    fn amount(&self) -> Amount {
        self.0.parse().unwrap_or_default()
    }
    /// Thousandths, which is as fine as a node counts anything, rounded up.
    pub fn milli(&self) -> i64 {
        self.amount().milli()
    }
    /// Whole units (bytes, processes), rounded up.
    pub fn value(&self) -> i64 {
        self.amount().value()
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
            // In single precision, as a kubelet has it: a tenth is a little more than that, and what it leaves to pods is
            // the same to the byte.
            Some(percent) => {
                (f64::from(percent.parse::<f32>().unwrap_or(0.0) / 100.0) * capacity as f64) as u64
            }
            None => u64::try_from(self.0.parse::<Amount>().unwrap_or_default().value()).unwrap_or(0),
        }
    }
}

impl FromStr for QuantityText {
    type Err = BadText;
    fn from_str(text: &str) -> Result<Self, BadText> {
        let read = text.parse::<Amount>();
        read.map(|_| Self(text.into())).map_err(|_| BadText::Quantity(text.into()))
    }
}

impl FromStr for Threshold {
    type Err = BadText;
    fn from_str(text: &str) -> Result<Self, BadText> {
        let good = match text.strip_suffix('%') {
            Some(percent) => percent.parse::<f64>().is_ok_and(|p| (0.0..=100.0).contains(&p)),
            None => text.parse::<Amount>().is_ok_and(|amount| amount >= Amount::ZERO),
        };
        if good { Ok(Self(text.into())) } else { Err(BadText::Threshold(text.into())) }
    }
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
                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$ty, E> {
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
    QuantityText: "a quantity such as \"500m\", \"2\" or \"1Gi\"";
    Threshold: "a threshold such as \"100Mi\" or \"10%\"";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_keeps_its_text_and_counts_as_kubernetes_counts_it() {
        let quantity: QuantityText = "1.5Gi".parse().unwrap();
        assert_eq!((quantity.as_str(), quantity.value()), ("1.5Gi", 3 << 29));
        assert_eq!("200m".parse::<QuantityText>().unwrap().milli(), 200);
    }

    #[test]
    fn what_is_not_a_quantity_is_refused() {
        for bad in ["", "Mi", "1mi", "1 Gi", "1.2.3", "one", "."] {
            assert!(bad.parse::<QuantityText>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_threshold_is_a_quantity_or_a_share_of_the_capacity() {
        assert_eq!("10%".parse::<Threshold>().unwrap().resolve(1000), 100);
        assert_eq!(
            "10%".parse::<Threshold>().unwrap().resolve(41_106_702_336),
            4_110_670_294,
            "a kubelet's figure"
        );
        assert_eq!("1Ki".parse::<Threshold>().unwrap().resolve(1), 1024);
        for bad in ["101%", "-1%", "%", "-5Mi", "x"] {
            assert!(bad.parse::<Threshold>().is_err(), "{bad:?} was accepted");
        }
    }
}
