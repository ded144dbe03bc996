//! The smallest strategic merge patch that turns one status into another.
//!
//! Most lists in a status have no merge key and are replaced whole. Three kinds need care: conditions, which several
//! writers share, and lists of addresses, whose order carries meaning.

use serde_json::{Map, Value, json};

/// How the API treats a list, by the name of its field.
enum ListKind {
    /// Merged by a key: only what changed is sent, so that a condition which someone else wrote meanwhile survives.
    Shared { key: &'static str },
    /// Has a merge key too, but the order matters and we own all of it: replaced by an explicit directive.
    Ordered,
    /// No merge key: the whole list is the value.
    Whole,
}

fn list_kind(field: &str) -> ListKind {
    match field {
        "conditions" => ListKind::Shared { key: "type" },
        "podIPs" | "hostIPs" | "addresses" => ListKind::Ordered,
        _ => ListKind::Whole,
    }
}

/// None when there is nothing to change.
pub(crate) fn diff(old: &Value, new: &Value) -> Option<Value> {
    let empty = Map::new();
    let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
    let mut patch = Map::new();
    for (field, value) in new {
        let before = old.get(field).unwrap_or(&Value::Null);
        if before == value {
            continue;
        }
        let change = match (before, value) {
            (Value::Object(_), Value::Object(_)) => diff(before, value),
            (_, Value::Array(items)) => diff_list(field, before.as_array().map_or(&[], Vec::as_slice), items),
            _ => Some(value.clone()),
        };
        if let Some(change) = change {
            patch.insert(field.clone(), change);
        }
    }
    for field in old.keys().filter(|field| !new.contains_key(*field)) {
        patch.insert(field.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn diff_list(field: &str, old: &[Value], new: &[Value]) -> Option<Value> {
    match list_kind(field) {
        ListKind::Whole => Some(Value::Array(new.to_vec())),
        ListKind::Ordered => {
            let directive = std::iter::once(json!({"$patch": "replace"}));
            Some(Value::Array(directive.chain(new.iter().cloned()).collect()))
        }
        ListKind::Shared { key } => {
            let with = |list: &[Value], item: &Value| {
                list.iter().find(|other| other.get(key) == item.get(key)).cloned()
            };
            let mut changes = Vec::new();
            for item in new {
                match with(old, item) {
                    Some(before) if before == *item => {}
                    Some(before) => changes.push(with_removals(&before, item)),
                    None => changes.push(item.clone()),
                }
            }
            for gone in old.iter().filter(|item| with(new, item).is_none()) {
                changes.push(json!({"$patch": "delete", key: gone.get(key)}));
            }
            (!changes.is_empty()).then_some(Value::Array(changes))
        }
    }
}

/// The whole new element, with a null for every field that it lost: a merge would keep those.
fn with_removals(old: &Value, new: &Value) -> Value {
    let mut merged = new.as_object().cloned().unwrap_or_default();
    for field in old.as_object().into_iter().flat_map(Map::keys) {
        merged.entry(field.clone()).or_insert(Value::Null);
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_holds_what_changed_and_nothing_else() {
        let cases = [
            ("nothing changed", json!({"phase": "Running"}), json!({"phase": "Running"}), None),
            (
                "a value",
                json!({"phase": "Pending", "qosClass": "Burstable"}),
                json!({"phase": "Running", "qosClass": "Burstable"}),
                Some(json!({"phase": "Running"})),
            ),
            (
                "a field that went away",
                json!({"reason": "Evicted"}),
                json!({}),
                Some(json!({"reason": null})),
            ),
            (
                "one condition of two",
                json!({"conditions": [{"type": "Ready", "status": "False"}, {"type": "PodScheduled", "status": "True"}]}),
                json!({"conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]}),
                Some(json!({"conditions": [{"type": "Ready", "status": "True"}]})),
            ),
            (
                "a condition that lost its message",
                json!({"conditions": [{"type": "Ready", "status": "False", "message": "m"}]}),
                json!({"conditions": [{"type": "Ready", "status": "True"}]}),
                Some(json!({"conditions": [{"type": "Ready", "status": "True", "message": null}]})),
            ),
            (
                "a condition that is gone",
                json!({"conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "status": "True"}]}),
                json!({"conditions": [{"type": "Ready", "status": "True"}]}),
                Some(json!({"conditions": [{"$patch": "delete", "type": "X"}]})),
            ),
            (
                "container statuses are replaced whole",
                json!({"containerStatuses": [{"name": "a", "ready": false}, {"name": "b", "ready": true}]}),
                json!({"containerStatuses": [{"name": "a", "ready": true}, {"name": "b", "ready": true}]}),
                Some(
                    json!({"containerStatuses": [{"name": "a", "ready": true}, {"name": "b", "ready": true}]}),
                ),
            ),
            (
                "addresses keep their order, primary first",
                json!({"podIPs": [{"ip": "10.0.0.1"}]}),
                json!({"podIPs": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}]}),
                Some(json!({"podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}]})),
            ),
            (
                "a map loses one entry",
                json!({"capacity": {"cpu": "4", "hugepages-2Mi": "0"}}),
                json!({"capacity": {"cpu": "4"}}),
                Some(json!({"capacity": {"hugepages-2Mi": null}})),
            ),
            ("from nothing", Value::Null, json!({"phase": "Pending"}), Some(json!({"phase": "Pending"}))),
        ];
        for (name, old, new, expected) in cases {
            assert_eq!(diff(&old, &new), expected, "{name}");
        }
    }
}
