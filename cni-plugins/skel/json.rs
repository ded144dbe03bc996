//! JSON as everybody else on this wire reads it, which is as Go's encoding/json does.
//!
//! Runtimes and the reference plugins are written in Go. Its reader takes a key for a field whatever its case, and of
//! several keys for one field the last. Writers rely on that: containerd's go-cni hands `HostPort` and `RangeStart` to
//! plugins whose documentation says `hostPort` and `rangeStart`. So a key is matched here at the one place where a
//! struct asks for its fields, and no struct has to know.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};
use serde_json::{Error, Value};

/// A value with its keys in the order they were written in. Keys with null are left out, because null means "not given".
#[derive(Debug, Clone, PartialEq)]
pub enum Json {
    /// Anything but a list or an object.
    Scalar(Value),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The value of a key of an object, by the same rules as a struct's field.
    pub fn get(&self, key: &str) -> Option<&Json> {
        let Json::Object(entries) = self else { return None };
        entries.iter().rev().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Scalar(value) => value.as_str(),
            _ => None,
        }
    }

    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Json::Scalar(value) => value.as_u64(),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Json::Scalar(Value::Null))
    }
}

/// The entries that belong to a struct's fields, under the names that the struct knows them by.
fn of_fields<'a>(
    entries: &'a [(String, Json)],
    fields: &'static [&'static str],
) -> Vec<(&'static str, &'a Json)> {
    let mut chosen: Vec<Option<&Json>> = vec![None; fields.len()];
    for (key, value) in entries {
        let exact = fields.iter().position(|field| field == key);
        let at = exact.or_else(|| fields.iter().position(|field| field.eq_ignore_ascii_case(key)));
        if let Some(slot) = at.and_then(|at| chosen.get_mut(at)) {
            *slot = Some(value);
        }
    }
    fields.iter().zip(chosen).filter_map(|(field, value)| Some((*field, value?))).collect()
}

impl<'de> Deserializer<'de> for &'de Json {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Json::Scalar(value) => value.deserialize_any(visitor),
            Json::List(items) => visitor.visit_seq(SeqDeserializer::new(items.iter())),
            Json::Object(entries) => visitor
                .visit_map(MapDeserializer::new(entries.iter().map(|(key, value)| (key.as_str(), value)))),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self {
            Json::Object(entries) => {
                visitor.visit_map(MapDeserializer::new(of_fields(entries, fields).into_iter()))
            }
            // A list would do for serde, field by field; for whoever wrote it, it is a mistake.
            other => Err(serde::de::Error::custom(format!("an object is expected, not {other}"))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for &'de Json {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Scalar(value.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Scalar(text.into()))
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Scalar(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            items.push(item);
        }
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = from.next_entry::<String, Json>()? {
            if !value.is_null() {
                entries.push((key, value));
            }
        }
        Ok(Json::Object(entries))
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Value::deserialize(self).map_err(|_| fmt::Error)?.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Outer {
        host_port: i64,
        #[serde(rename = "hostIP")]
        host_ip: String,
        inner: Vec<Inner>,
        mac: Option<String>,
        #[serde(rename = "MAC")]
        shouted: Option<String>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Inner {
        range_start: String,
    }

    fn read(text: &str) -> Result<Outer, Error> {
        Outer::deserialize(&serde_json::from_str::<Json>(text)?)
    }

    #[test]
    fn keys_are_taken_as_go_takes_them() {
        let port = |host_port| Outer { host_port, ..Outer::default() };
        for (text, expected) in [
            (r#"{"hostPort": 80}"#, port(80)),
            (r#"{"HostPort": 80}"#, port(80)),
            (r#"{"HOSTPORT": 80, "host_port": 81, "hostPor": 82}"#, port(80)),
            // The last of them, exact or not.
            (r#"{"hostPort": 80, "HostPort": 81}"#, port(81)),
            (r#"{"HostPort": 81, "hostPort": 80}"#, port(80)),
            (r#"{"hostPort": 80, "hostPort": 81}"#, port(81)),
            // Null is nothing at all.
            (r#"{"hostPort": 80, "HostPort": null}"#, port(80)),
            (r#"{"HostIP": "::1"}"#, Outer { host_ip: "::1".into(), ..Outer::default() }),
            (
                r#"{"Inner": [{"RangeStart": "a"}, {"rangestart": "b"}]}"#,
                Outer {
                    inner: vec![Inner { range_start: "a".into() }, Inner { range_start: "b".into() }],
                    ..Outer::default()
                },
            ),
            // Where two fields differ in case alone, each has its own.
            (
                r#"{"MAC": "a", "mac": "b"}"#,
                Outer { mac: Some("b".into()), shouted: Some("a".into()), ..Outer::default() },
            ),
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text}");
        }
        for text in ["[80]", r#"{"inner": [["a"]]}"#, r#"{"inner": ["a"]}"#] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("an object is expected, not "), "{text}: {error}");
        }
        let error = read(r#"{"HostPort": "80"}"#).unwrap_err().to_string();
        assert_eq!(error, r#"invalid type: string "80", expected i64"#);
    }

    #[test]
    fn values_are_found_and_shown_as_they_were_written() {
        let json: Json =
            serde_json::from_str(r#"{"Ipam": {"TYPE": "a", "type": "b"}, "x": [1, {}]}"#).unwrap();
        assert_eq!(json.get("ipam").and_then(|i| i.get("type")?.as_str()), Some("b"));
        assert_eq!(json.get("x").map(ToString::to_string).as_deref(), Some("[1,{}]"));
        assert_eq!(json.get("type"), None);
    }
}
