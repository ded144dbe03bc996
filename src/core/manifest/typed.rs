//! The Pod that a tree describes, made through JSON: types of Kubernetes are read from JSON elsewhere anyway, and to read
//! them from YAML too would be the largest part of the program.

use k8s_openapi::api::core::v1::Pod;

use super::Problem;
use super::tree::{Tree, Value, join};

pub(super) fn pod(tree: &Tree) -> Result<Pod, Problem> {
    let mut json = Vec::new();
    write(tree, &mut json).map_err(|e| Problem::at("", format!("cannot be written as JSON: {e}")))?;
    serde_json::from_slice(&json).map_err(|e| misread(tree, &e))
}

/// Every key, every item and every closing bracket begins a line, so that the line which a reader complains about says
/// which field it was at.
fn write(tree: &Tree, out: &mut Vec<u8>) -> serde_json::Result<()> {
    match &tree.value {
        Value::Null => out.extend(b"null"),
        Value::Bool(value) => serde_json::to_writer(out, value)?,
        Value::Number(number) => serde_json::to_writer(out, number)?,
        Value::Text(text) => serde_json::to_writer(out, text)?,
        Value::List(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                out.extend(if i == 0 { &b"\n"[..] } else { b",\n" });
                write(item, out)?;
            }
            out.extend(b"\n]");
        }
        Value::Map(entries) => {
            out.push(b'{');
            for (i, entry) in entries.iter().enumerate() {
                out.extend(if i == 0 { &b"\n"[..] } else { b",\n" });
                serde_json::to_writer(&mut *out, &entry.key)?;
                out.push(b':');
                write(&entry.tree, out)?;
            }
            out.extend(b"\n}");
        }
    }
    Ok(())
}

fn misread(tree: &Tree, error: &serde_json::Error) -> Problem {
    // A reader that stopped where a line begins has not read it: it complains about what stands before.
    let begun = if error.column() == 0 { 2 } else { 1 };
    let field = field_at(tree, &mut error.line().saturating_sub(begun)).unwrap_or_default();
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let mut text = text.strip_suffix(&place).unwrap_or(&text).to_owned();
    let bare = ["invalid type: integer", "invalid type: floating point", "invalid type: boolean"];
    if bare.iter().any(|kind| text.starts_with(kind)) && text.ends_with("expected a string") {
        text.push_str("; put it into quotes");
    }
    Problem::at(field, text)
}

/// The field that `write` was at when it had begun as many lines as are left to go.
fn field_at(tree: &Tree, left: &mut usize) -> Option<String> {
    if *left == 0 {
        return Some(String::new());
    }
    let mut inside = |child: &Tree| {
        *left -= 1;
        field_at(child, left)
    };
    let found = match &tree.value {
        Value::List(items) => items
            .iter()
            .enumerate()
            .find_map(|(i, item)| inside(item).map(|rest| join(&format!("[{i}]"), &rest))),
        Value::Map(entries) => entries.iter().find_map(|e| inside(&e.tree).map(|rest| join(&e.key, &rest))),
        _ => return None,
    };
    found.or_else(|| {
        *left -= 1;
        (*left == 0).then(String::new)
    })
}
