//! Configuration documents as one tree, in which every value remembers which file, line or flag it came from.

use std::fmt;
use std::sync::Arc;

use crate::yaml;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    File { name: Arc<str>, line: u64 },
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

/// Each place says where the value came from.
pub(super) type Node = yaml::Tree<Origin>;
pub(super) type Value = yaml::Value<Origin>;
pub(super) type Entry = yaml::Entry<Origin>;

impl Node {
    pub fn empty_map(origin: Origin) -> Self {
        Self { place: origin, value: Value::Map(vec![]) }
    }

    /// Where the value at a dotted path was written, or its closest ancestor that was.
    pub fn origin_of(&self, path: &str) -> Origin {
        let mut here = self;
        let mut origin = Origin::Default;
        for key in path.split('.') {
            let Value::Map(entries) = &here.value else { break };
            let Some(entry) = entries.iter().find(|entry| entry.key == key) else { break };
            (here, origin) = (&entry.tree, entry.place.clone());
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
        let at = match entries.iter().position(|entry| entry.key == *key) {
            Some(at) => at,
            None => {
                let (place, tree) = (node.place.clone(), Self::empty_map(node.place.clone()));
                entries.push(Entry { key: (*key).to_owned(), place, tree });
                entries.len() - 1
            }
        };
        entries[at].place = node.place.clone();
        entries[at].tree.set(rest, node);
    }

    /// A JSON merge patch (RFC 7386), which is how the kubelet applies its drop-ins: maps are merged key by key, null
    /// takes a key away, everything else (lists too) is replaced whole.
    pub fn merge(&mut self, patch: Node) {
        let Value::Map(changes) = patch.value else {
            *self = patch;
            return;
        };
        if !matches!(self.value, Value::Map(_)) {
            *self = Self::empty_map(patch.place);
        }
        let Value::Map(entries) = &mut self.value else { return };
        for Entry { key, place, tree } in changes {
            let at = entries.iter().position(|entry| entry.key == key);
            match (at, tree.value == Value::Null) {
                (Some(at), true) => drop(entries.remove(at)),
                (None, true) => {}
                (Some(at), false) => {
                    entries[at].place = place;
                    entries[at].tree.merge(tree);
                }
                (None, false) => {
                    let mut fresh = Self::empty_map(place.clone());
                    fresh.merge(tree);
                    entries.push(Entry { key, place, tree: fresh });
                }
            }
        }
    }
}

/// Reads one file. The error says line and problem.
pub(super) fn read(name: &str, text: &str) -> Result<Node, (Option<u64>, String)> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    let lines: yaml::Tree<u64> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| (error.location().map(|at| at.line()), first_line(&error)))?;
    let name: Arc<str> = name.into();
    Ok(lines.with_places(&|line| Origin::File { name: name.clone(), line }))
}

fn first_line(error: &serde_saphyr::Error) -> String {
    let text = error.render_with_formatter(&serde_saphyr::DefaultMessageFormatter);
    let line = text.lines().next().unwrap_or_default().trim().to_owned();
    // Whoever reports the error says where.
    match line.rfind(" at line ") {
        Some(at) => line[..at].to_owned(),
        None => line,
    }
}
