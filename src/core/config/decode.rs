//! Reads typed sections out of a located tree; an error carries the field's path and where its value was written.

use std::fmt;

use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::tree::{Entry, Node, Origin, Value};
use crate::likeness::distance;

/// A value that does not fit its field.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Misfit {
    /// Dotted, such as authentication.webhook.cacheTTL; empty for the document itself.
    pub path: String,
    pub origin: Option<Origin>,
    pub problem: String,
}

pub(super) fn decode<'de, T: de::Deserialize<'de>>(node: &'de Node) -> Result<T, Misfit> {
    T::deserialize(At(node)).map_err(|misfit| misfit.located(&node.place))
}

impl Misfit {
    fn located(mut self, origin: &Origin) -> Self {
        self.origin.get_or_insert_with(|| origin.clone());
        self
    }
    fn under(mut self, key: &str, origin: &Origin) -> Self {
        let separator = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{key}{separator}{}", self.path);
        self.located(origin)
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}
impl std::error::Error for Misfit {}

impl de::Error for Misfit {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        Self { path: String::new(), origin: None, problem: problem.to_string() }
    }
    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format_args!("found {found}, but this must be {}", plain(expected)))
    }
    fn invalid_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::custom(format_args!("{found} is out of range: this must be {}", plain(expected)))
    }
    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let close = expected
            .iter()
            .map(|name| (distance(&field.to_lowercase(), &name.to_lowercase()), name))
            .min()
            .filter(|(distance, name)| *distance <= 2.max(name.len() / 4));
        let problem = match close {
            Some((_, name)) => format!("there is no such field, did you mean {name}?"),
            None if expected.len() <= 8 => {
                format!("there is no such field, known here: {}", expected.join(", "))
            }
            None => "there is no such field in KubeletConfiguration v1beta1".into(),
        };
        Self::custom(problem)
    }
}

/// What was expected, for a reader who does not know this program's types.
fn plain(expected: &dyn de::Expected) -> String {
    match expected.to_string().as_str() {
        "i32" => "a whole number that fits 32 bits".into(),
        "i64" => "a whole number that fits 64 bits".into(),
        "u32" => "a whole number from 0 to 4294967295".into(),
        "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "text (put it in quotes)".into(),
        "a sequence" => "a list".into(),
        "a map" => "a mapping".into(),
        other => other.into(),
    }
}

struct At<'de>(&'de Node);

impl<'de> de::Deserializer<'de> for At<'de> {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match &self.0.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => visitor.visit_i64(number),
                (None, Some(number)) => visitor.visit_u64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
            Value::Text(value) => visitor.visit_borrowed_str(value),
            Value::List(items) => visitor.visit_seq(Items { items, index: 0 }),
            Value::Map(entries) => visitor.visit_map(Entries { entries, index: 0 }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Items<'de> {
    items: &'de [Node],
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        let Some(node) = self.items.get(self.index) else { return Ok(None) };
        let key = format!("[{}]", self.index);
        self.index += 1;
        seed.deserialize(At(node)).map(Some).map_err(|misfit| misfit.under(&key, &node.place))
    }
}

struct Entries<'de> {
    entries: &'de [Entry],
    index: usize,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Misfit> {
        let Some(Entry { key, place, .. }) = self.entries.get(self.index) else { return Ok(None) };
        let key_only: de::value::StrDeserializer<'_, Misfit> = key.as_str().into_deserializer();
        seed.deserialize(key_only).map(Some).map_err(|misfit| misfit.under(key, place))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Misfit> {
        let Some(Entry { key, place, tree }) = self.entries.get(self.index) else {
            return Err(de::Error::custom("a value was asked for without a key"));
        };
        self.index += 1;
        seed.deserialize(At(tree)).map_err(|misfit| misfit.under(key, place))
    }
}
