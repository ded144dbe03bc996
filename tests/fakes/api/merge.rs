//! Merge patches, plain and strategic, as far as an agent sends them.

use serde_json::{Map, Value};

/// The merge key of a list, by the name of its field.
fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" | "addresses" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        _ => None,
    }
}

pub(crate) fn apply(target: &mut Value, patch: &Value, strategic: bool) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (field, change) in patch {
        if field.starts_with('$') {
            continue;
        }
        match (change, merge_key(field)) {
            (Value::Null, _) => {
                target.remove(field);
            }
            (Value::Array(changes), Some(key)) if strategic => {
                let list = target.entry(field.clone()).or_insert_with(|| Value::Array(vec![]));
                apply_list(list, changes, key);
            }
            (Value::Object(_), _) => {
                apply(target.entry(field.clone()).or_insert(Value::Null), change, strategic)
            }
            _ => {
                target.insert(field.clone(), change.clone());
            }
        }
    }
}

fn apply_list(target: &mut Value, changes: &[Value], key: &str) {
    let mut list = target.as_array().cloned().unwrap_or_default();
    if changes.iter().any(|change| change.get("$patch") == Some(&Value::from("replace"))) {
        list.clear();
    }
    for change in changes {
        let same = |item: &Value| item.get(key).is_some() && item.get(key) == change.get(key);
        match change.get("$patch").and_then(Value::as_str) {
            Some("replace") => {}
            Some("delete") => list.retain(|item| !same(item)),
            _ => match list.iter_mut().find(|item| same(item)) {
                Some(item) => apply(item, change, true),
                None => {
                    let mut item = Value::Null;
                    apply(&mut item, change, true);
                    list.push(item);
                }
            },
        }
    }
    *target = Value::Array(list);
}
