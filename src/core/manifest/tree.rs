//! A YAML document that remembers on which line everything stands, so that a complaint about a field can say where.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;
use serde_saphyr::Spanned;

/// How Kubernetes reads YAML: `0644` is octal, `yes` is a boolean, and a number is never a string.
pub(super) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! { legacy_octal_numbers: true, no_schema: true, with_snippet: false }
}

#[derive(Debug, PartialEq)]
pub(super) struct Tree {
    pub line: u64,
    pub value: Value,
}

#[derive(Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Tree>),
    Map(Vec<Entry>),
}

#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    pub key: String,
    line: u64,
    pub tree: Tree,
}

impl Tree {
    pub fn get(&self, key: &str) -> Option<&Tree> {
        self.entry(key).map(|e| &e.tree)
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|e| e.key == key),
            _ => None,
        }
    }

    /// The line of a field path such as `spec.containers[0].image`, or of its nearest ancestor that is there.
    pub fn line_of(&self, field: &str) -> Option<u64> {
        let (mut here, mut line) = (self, self.line);
        let mut rest = field;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let (index, after) = after.split_once(']')?;
                let Value::List(items) = &here.value else { break };
                let Some(item) = index.parse::<usize>().ok().and_then(|i| items.get(i)) else { break };
                (here, line) = (item, item.line);
                rest = after.strip_prefix('.').unwrap_or(after);
            } else {
                // Keys of labels contain dots, so the longest key that fits is the one that is meant.
                let Value::Map(entries) = &here.value else { break };
                let fits = |e: &&Entry| {
                    rest.strip_prefix(e.key.as_str())
                        .is_some_and(|r| r.is_empty() || r.starts_with(['.', '[']))
                };
                let Some(entry) = entries.iter().filter(fits).max_by_key(|e| e.key.len()) else { break };
                (here, line) = (&entry.tree, entry.line);
                rest = &rest[entry.key.len()..];
                rest = rest.strip_prefix('.').unwrap_or(rest);
            }
        }
        (line > 0).then_some(line)
    }

    /// The path of the first thing in here that `other` does not have. A null says as much as an absence.
    pub fn first_not_in(&self, other: &serde_json::Value) -> Option<String> {
        match (&self.value, other) {
            (Value::Map(entries), serde_json::Value::Object(known)) => {
                entries.iter().filter(|e| e.tree.value != Value::Null).find_map(|e| match known.get(&e.key) {
                    None => Some(e.key.clone()),
                    Some(value) => e.tree.first_not_in(value).map(|rest| join(&e.key, &rest)),
                })
            }
            (Value::List(items), serde_json::Value::Array(known)) => {
                items.iter().zip(known).enumerate().find_map(|(i, (item, value))| {
                    item.first_not_in(value).map(|rest| join(&format!("[{i}]"), &rest))
                })
            }
            _ => None,
        }
    }
}

pub(super) fn join(head: &str, rest: &str) -> String {
    if rest.is_empty() || rest.starts_with('[') { format!("{head}{rest}") } else { format!("{head}.{rest}") }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("is not a finite number, which is what a manifest can hold"))
    }
    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let tree = map.next_value()?;
            entries.push(Entry { line: key.referenced.line(), key: key.value, tree });
        }
        Ok(Value::Map(entries))
    }
}
