//! The configuration on stdin.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::failure::Failure;

/// Parses stdin into an object. Keys with null are dropped, because null means "not given" to the
/// runtimes and plugins that share these files.
pub(super) fn parse(stdin: &[u8]) -> Result<Map<String, Value>, Failure> {
    let failed =
        |details: String| Failure::new(Failure::DECODING, "cannot decode the network configuration", details);
    if stdin.iter().all(u8::is_ascii_whitespace) {
        return Err(failed(
            "stdin is empty; the network configuration is expected there as a JSON object".into(),
        ));
    }
    let mut value: Value = serde_json::from_slice(stdin).map_err(|e| failed(e.to_string()))?;
    drop_nulls(&mut value);
    match value {
        Value::Object(object) => Ok(object),
        other => Err(failed(format!("a JSON object is expected, not {other}"))),
    }
}

/// Reads a plugin's options out of the configuration, naming the key that does not fit.
pub fn decode<T: DeserializeOwned>(conf: &Map<String, Value>) -> Result<T, Failure> {
    let whole = serde_json::from_value(Value::Object(conf.clone()));
    whole.map_err(|error| {
        let culprit = conf.iter().find_map(|(key, value)| {
            let alone = Map::from_iter([(key.clone(), value.clone())]);
            serde_json::from_value::<T>(Value::Object(alone)).err().map(|e| format!("{key:?}: {e}"))
        });
        Failure::config(culprit.unwrap_or_else(|| error.to_string()))
    })
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, v| !v.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
