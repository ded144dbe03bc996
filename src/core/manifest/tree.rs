//! What a manifest's tree is asked for: the line of a field, and whether there is more in it than was understood.

use crate::yaml;
pub(super) use crate::yaml::Value;

/// Each place is a line.
pub(super) type Tree = yaml::Tree<u64>;

/// How Kubernetes reads YAML: `0644` is octal, `yes` is a boolean, and a number is never a string.
pub(super) fn options() -> serde_saphyr::Options {
    serde_saphyr::options! { legacy_octal_numbers: true, no_schema: true, with_snippet: false }
}

impl Tree {
    /// The line of a field path such as `spec.containers[0].image`, or of its nearest ancestor that is there.
    pub fn line_of(&self, field: &str) -> Option<u64> {
        let (mut here, mut line) = (self, self.place);
        let mut rest = field;
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let (index, after) = after.split_once(']')?;
                let Value::List(items) = &here.value else { break };
                let Some(item) = index.parse::<usize>().ok().and_then(|i| items.get(i)) else { break };
                (here, line) = (item, item.place);
                rest = after.strip_prefix('.').unwrap_or(after);
            } else {
                // Keys of labels contain dots, so the longest key that fits is the one that is meant.
                let Value::Map(entries) = &here.value else { break };
                let fits = |e: &&yaml::Entry<u64>| {
                    rest.strip_prefix(e.key.as_str())
                        .is_some_and(|r| r.is_empty() || r.starts_with(['.', '[']))
                };
                let Some(entry) = entries.iter().filter(fits).max_by_key(|e| e.key.len()) else { break };
                (here, line) = (&entry.tree, entry.place);
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
