//! A configuration document as a tree in which every value remembers where it was written.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess};
use serde_saphyr::Spanned;

/// The place a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    File { name: std::sync::Arc<str>, line: u64 },
    Flag(&'static str),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Flag(flag) => write!(f, "--{flag}"),
            Self::Default => f.write_str("default"),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub origin: Origin,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// In the order written. The origin of an entry is the line of its key.
    Map(Vec<(String, Origin, Node)>),
}

impl Node {
    pub fn empty_map(origin: Origin) -> Self {
        Self { origin, value: Value::Map(vec![]) }
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(name, ..)| name == key).map(|(_, _, node)| node),
            _ => None,
        }
    }

    /// Where the value at a dotted path was written, or its closest ancestor that was.
    pub fn origin_of(&self, path: &str) -> Origin {
        let mut here = self;
        let mut origin = Origin::Default;
        for key in path.split('.') {
            let Value::Map(entries) = &here.value else { break };
            let Some((_, at, node)) = entries.iter().find(|(name, ..)| name == key) else { break };
            (here, origin) = (node, at.clone());
        }
        origin
    }

    /// Sets the value at a path of keys, making the maps on the way.
    pub fn set(&mut self, path: &[&str], node: Node) {
        let Some((key, rest)) = path.split_first() else {
            *self = node;
            return;
        };
        if !matches!(self.value, Value::Map(_)) {
            self.value = Value::Map(vec![]);
        }
        let Value::Map(entries) = &mut self.value else { return };
        let at = match entries.iter().position(|(name, ..)| name == key) {
            Some(at) => at,
            None => {
                entries.push(((*key).to_owned(), node.origin.clone(), Self::empty_map(node.origin.clone())));
                entries.len() - 1
            }
        };
        entries[at].1 = node.origin.clone();
        entries[at].2.set(rest, node);
    }

    /// A JSON merge patch (RFC 7386), which is how the kubelet applies its drop-ins: maps are merged key by key, null
    /// takes a key away, everything else (lists too) is replaced whole.
    pub fn merge(&mut self, patch: Node) {
        let Value::Map(changes) = patch.value else {
            *self = patch;
            return;
        };
        if !matches!(self.value, Value::Map(_)) {
            *self = Self::empty_map(patch.origin);
        }
        let Value::Map(entries) = &mut self.value else { return };
        for (key, origin, node) in changes {
            let at = entries.iter().position(|(name, ..)| *name == key);
            match (at, node.value == Value::Null) {
                (Some(at), true) => drop(entries.remove(at)),
                (None, true) => {}
                (Some(at), false) => {
                    entries[at].1 = origin;
                    entries[at].2.merge(node);
                }
                (None, false) => {
                    let mut fresh = Self::empty_map(origin.clone());
                    fresh.merge(node);
                    entries.push((key, origin, fresh));
                }
            }
        }
    }
}

/// Reads YAML (or JSON, which is YAML) into a tree. The error says line and problem.
pub(super) fn read(name: &str, text: &str) -> Result<Node, (Option<u64>, String)> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    let raw: Spanned<Raw> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| (error.location().map(|at| at.line()), first_line(&error)))?;
    Ok(located(raw, &name.into()))
}

fn first_line(error: &serde_saphyr::Error) -> String {
    let text = error.render_with_formatter(&serde_saphyr::DefaultMessageFormatter);
    let line = text.lines().next().unwrap_or_default().trim().to_owned();
    // The place is told by whoever reports the error.
    match line.rfind(" at line ") {
        Some(at) => line[..at].to_owned(),
        None => line,
    }
}

fn located(raw: Spanned<Raw>, name: &std::sync::Arc<str>) -> Node {
    let origin = |line| Origin::File { name: name.clone(), line };
    let line = raw.referenced.line();
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Bool(b) => Value::Bool(b),
        Raw::Int(n) => Value::Int(n),
        Raw::Float(n) => Value::Float(n),
        Raw::Text(text) => Value::Text(text),
        Raw::List(items) => Value::List(items.into_iter().map(|item| located(item, name)).collect()),
        Raw::Map(entries) => Value::Map(
            entries
                .into_iter()
                .map(|(key, node)| (key.value, origin(key.referenced.line()), located(node, name)))
                .collect(),
        ),
    };
    Node { origin: origin(line), value }
}

enum Raw {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a configuration value")
            }
            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }
            fn visit_none<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
                Ok(Raw::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
                Ok(Raw::Int(value))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Raw, E> {
                i64::try_from(value).map(Raw::Int).map_err(|_| E::custom("the number is too large"))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
                Ok(Raw::Float(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
                Ok(Raw::Text(value.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
                let mut items = vec![];
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Raw::List(items))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut entries = vec![];
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Raw::Map(entries))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
