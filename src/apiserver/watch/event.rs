//! One line of a watch: what happened, and to which object.

use std::fmt;
use std::marker::PhantomData;

use kube::core::Status;
use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

#[derive(Debug)]
pub(super) enum WatchEvent<K> {
    Applied(K),
    Deleted(K),
    /// Nothing happened up to this version.
    Bookmark {
        version: String,
    },
    /// The watch is over, for this reason.
    Error(Box<Status>),
}

/// A derived reader of a tagged enum can also buffer the object, in case that it comes before its type, and for that has
/// a second reader of every type of the object. Here the object's bytes wait instead.
pub(super) fn read<K: DeserializeOwned>(line: &[u8]) -> serde_json::Result<WatchEvent<K>> {
    let mut reader = serde_json::Deserializer::from_slice(line);
    let event = reader.deserialize_map(LineVisitor(PhantomData))?;
    reader.end()?;
    Ok(event)
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Key {
    Type,
    Object,
    #[serde(other)]
    Other,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "UPPERCASE")]
enum Kind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

struct LineVisitor<K>(PhantomData<K>);

impl<'de, K: DeserializeOwned> Visitor<'de> for LineVisitor<K> {
    type Value = WatchEvent<K>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a watch event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WatchEvent<K>, A::Error> {
        let (mut kind, mut waiting, mut event) = (None, None::<&RawValue>, None);
        while let Some(key) = map.next_key()? {
            match (key, kind) {
                (Key::Type, None) => kind = Some(map.next_value()?),
                (Key::Type, Some(_)) => return Err(A::Error::duplicate_field("type")),
                (Key::Object, _) if event.is_some() || waiting.is_some() => {
                    return Err(A::Error::duplicate_field("object"));
                }
                (Key::Object, Some(kind)) => event = Some(map.next_value_seed(Object(kind, PhantomData))?),
                (Key::Object, None) => waiting = Some(map.next_value()?),
                (Key::Other, _) => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let kind = kind.ok_or_else(|| A::Error::missing_field("type"))?;
        match (event, waiting) {
            (Some(event), _) => Ok(event),
            (None, Some(raw)) => Object(kind, PhantomData)
                .deserialize(&mut serde_json::Deserializer::from_slice(raw.get().as_bytes()))
                .map_err(A::Error::custom),
            (None, None) => Err(A::Error::missing_field("object")),
        }
    }
}

/// The object of an event whose kind is known.
struct Object<K>(Kind, PhantomData<K>);

impl<'de, K: DeserializeOwned> DeserializeSeed<'de> for Object<K> {
    type Value = WatchEvent<K>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<WatchEvent<K>, D::Error> {
        match self.0 {
            Kind::Added | Kind::Modified => K::deserialize(deserializer).map(WatchEvent::Applied),
            Kind::Deleted => K::deserialize(deserializer).map(WatchEvent::Deleted),
            Kind::Bookmark => Bookmark::deserialize(deserializer)
                .map(|bookmark| WatchEvent::Bookmark { version: bookmark.metadata.resource_version }),
            Kind::Error => Box::deserialize(deserializer).map(WatchEvent::Error),
        }
    }
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

    fn summary(line: &str) -> String {
        let name = |pod: Pod| pod.metadata.name.unwrap_or_default();
        match read::<Pod>(line.as_bytes()) {
            Ok(WatchEvent::Applied(pod)) => format!("applied {}", name(pod)),
            Ok(WatchEvent::Deleted(pod)) => format!("deleted {}", name(pod)),
            Ok(WatchEvent::Bookmark { version }) => format!("bookmark {version}"),
            Ok(WatchEvent::Error(status)) => format!("error {} {}", status.code, status.reason),
            Err(error) => format!("not understood: {error}"),
        }
    }

    #[test]
    fn a_line_is_what_its_type_says() {
        let pod = r#"{"kind":"Pod","metadata":{"name":"a \"b\"","labels":{}},"spec":{"containers":[]}}"#;
        assert_eq!(summary(&format!(r#"{{"type":"ADDED","object":{pod}}}"#)), r#"applied a "b""#);
        assert_eq!(summary(&format!(r#"{{"type":"MODIFIED","object":{pod}}}"#)), r#"applied a "b""#);
        assert_eq!(summary(&format!(r#"{{"type":"DELETED","object":{pod}}}"#)), r#"deleted a "b""#);
        assert_eq!(
            summary(&format!(r#"{{ "object" : {pod} , "new":1, "type" : "DELETED" }}"#)),
            r#"deleted a "b""#
        );
        let mark =
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"7","annotations":{"a":"b"}}}"#;
        assert_eq!(summary(&format!(r#"{{"type":"BOOKMARK","object":{mark}}}"#)), "bookmark 7");
        let gone =
            r#"{"kind":"Status","status":"Failure","message":"too old","reason":"Expired","code":410}"#;
        assert_eq!(summary(&format!(r#"{{"type":"ERROR","object":{gone}}}"#)), "error 410 Expired");
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
            r#"{"object":{"metadata":{"name":5}},"type":"ADDED"}"#,
            r#"{"type":"ADDED","type":"ADDED","object":{}}"#,
            r#"{"type":"ADDED","object":{},"object":{}}"#,
            r#"{"object":{},"object":{},"type":"ADDED"}"#,
            r#"{"type":"BOOKMARK","object":{"metadata":{}}}"#,
            r#"{"type":"ERROR","object":"gone"}"#,
        ];
        for line in lines {
            assert!(summary(line).starts_with("not understood: "), "{line}: {}", summary(line));
        }
        let nested = format!(r#"{{"type":"ADDED","object":{}"#, r#"{"a":"#.repeat(100_000));
        assert!(summary(&nested).starts_with("not understood: "), "a deep nest must not exhaust the stack");
    }
}
