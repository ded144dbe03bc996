//! A YAML document (or JSON, which is YAML) as a tree in which everything remembers the place where it was written, so that a
//! complaint about a field can say where.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use serde_saphyr::Spanned;

/// `P` is the place: the number of a line as it is read, or whatever a caller makes of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tree<P> {
    pub place: P,
    pub value: Value<P>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value<P> {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Tree<P>>),
    /// In the order written.
    Map(Vec<Entry<P>>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry<P> {
    pub key: String,
    /// Of the key.
    pub place: P,
    pub tree: Tree<P>,
}

impl<P> Tree<P> {
    pub fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.tree),
            _ => None,
        }
    }

    /// The same tree, with another word for each place.
    pub fn with_places<Q>(self, place: &impl Fn(P) -> Q) -> Tree<Q> {
        let value = match self.value {
            Value::Null => Value::Null,
            Value::Bool(value) => Value::Bool(value),
            Value::Number(number) => Value::Number(number),
            Value::Text(text) => Value::Text(text),
            Value::List(items) => {
                Value::List(items.into_iter().map(|item| item.with_places(place)).collect())
            }
            Value::Map(entries) => Value::Map(
                entries
                    .into_iter()
                    .map(|e| Entry { key: e.key, place: place(e.place), tree: e.tree.with_places(place) })
                    .collect(),
            ),
        };
        Tree { place: place(self.place), value }
    }
}

impl<'de> Deserialize<'de> for Tree<u64> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value<u64>>::deserialize(deserializer)?;
        Ok(Self { place: spanned.referenced.line(), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value<u64> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Value<u64>, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value<u64>, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value<u64>, D::Error> {
        deserializer.deserialize_any(self)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value<u64>, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value<u64>, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value<u64>, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value<u64>, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("is not a finite number, and only finite ones can be used"))
    }
    fn visit_str<E>(self, text: &str) -> Result<Value<u64>, E> {
        Ok(Value::Text(text.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value<u64>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value<u64>, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let tree = map.next_value()?;
            entries.push(Entry { place: key.referenced.line(), key: key.value, tree });
        }
        Ok(Value::Map(entries))
    }
}
