//! One line of a watch: what happened, and to which object.

use kube::core::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

#[derive(Debug)]
pub(crate) enum Event<K> {
    Applied(K),
    Deleted(K),
    /// Nothing happened up to this version.
    Bookmark {
        version: String,
    },
    /// The watch is over, for this reason.
    Error(Box<Status>),
}

/// The object is read where it stands in the line. To read the line as one tagged enum would first take the object
/// apart into pieces that nothing is known about, and needs a second reader for every type.
pub(crate) fn read<K: DeserializeOwned>(line: &[u8]) -> serde_json::Result<Event<K>> {
    let line: Line<'_> = serde_json::from_slice(line)?;
    let object = line.object.get().as_bytes();
    match line.kind {
        Kind::Added | Kind::Modified => serde_json::from_slice(object).map(Event::Applied),
        Kind::Deleted => serde_json::from_slice(object).map(Event::Deleted),
        Kind::Bookmark => {
            let bookmark: Bookmark = serde_json::from_slice(object)?;
            Ok(Event::Bookmark { version: bookmark.metadata.resource_version })
        }
        Kind::Error => serde_json::from_slice(object).map(Event::Error),
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: Kind,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    resource_version: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;

    fn told(line: &str) -> String {
        let name = |pod: Pod| pod.metadata.name.unwrap_or_default();
        match read::<Pod>(line.as_bytes()) {
            Ok(Event::Applied(pod)) => format!("applied {}", name(pod)),
            Ok(Event::Deleted(pod)) => format!("deleted {}", name(pod)),
            Ok(Event::Bookmark { version }) => format!("bookmark {version}"),
            Ok(Event::Error(status)) => format!("error {} {}", status.code, status.reason),
            Err(error) => format!("not understood: {error}"),
        }
    }

    #[test]
    fn a_line_is_what_its_type_says() {
        let pod = r#"{"kind":"Pod","metadata":{"name":"a \"b\"","labels":{}},"spec":{"containers":[]}}"#;
        assert_eq!(told(&format!(r#"{{"type":"ADDED","object":{pod}}}"#)), r#"applied a "b""#);
        assert_eq!(told(&format!(r#"{{"type":"MODIFIED","object":{pod}}}"#)), r#"applied a "b""#);
        assert_eq!(told(&format!(r#"{{"type":"DELETED","object":{pod}}}"#)), r#"deleted a "b""#);
        assert_eq!(
            told(&format!(r#"{{ "object" : {pod} , "new":1, "type" : "DELETED" }}"#)),
            r#"deleted a "b""#
        );
        let mark =
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7","annotations":{"a":"b"}}}"#;
        assert_eq!(told(&format!(r#"{{"type":"BOOKMARK","object":{mark}}}"#)), "bookmark 7");
        let gone =
            r#"{"kind":"Status","status":"Failure","message":"too old","reason":"Expired","code":410}"#;
        assert_eq!(told(&format!(r#"{{"type":"ERROR","object":{gone}}}"#)), "error 410 Expired");
    }

    #[test]
    fn what_is_no_event_is_not_understood() {
        let lines = [
            "",
            "null",
            "[]",
            r#"{"type":"ADDED"}"#,
            r#"{"object":{}}"#,
            r#"{"type":"RENAMED","object":{}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":5}}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"a"}"#,
            r#"{"type":"ADDED","object":{}} {"#,
            r#"{"type":"ADDED","object":null}"#,
            r#"{"type":"BOOKMARK","object":{"metadata":{}}}"#,
            r#"{"type":"ERROR","object":"gone"}"#,
        ];
        for line in lines {
            assert!(told(line).starts_with("not understood: "), "{line}: {}", told(line));
        }
        let nested = format!(r#"{{"type":"ADDED","object":{}"#, r#"{"a":"#.repeat(100_000));
        assert!(told(&nested).starts_with("not understood: "), "a deep nest must not exhaust the stack");
    }
}
