//! The configuration on stdin.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::failure::Failure;
use super::json::Json;
use super::result::Dns;

/// Parses stdin into an object.
pub(super) fn parse(stdin: &[u8]) -> Result<Json, Failure> {
    let failed =
        |details: String| Failure::new(Failure::DECODING, "cannot decode the network configuration", details);
    if stdin.iter().all(u8::is_ascii_whitespace) {
        return Err(failed(
            "stdin is empty; the network configuration is expected there as a JSON object".into(),
        ));
    }
    match serde_json::from_slice(stdin).map_err(|e| failed(e.to_string()))? {
        object @ Json::Object(_) => Ok(object),
        other => Err(failed(format!("a JSON object is expected, not {other}"))),
    }
}

/// Checks what all plugins' configurations have in common; each plugin reads its own options by itself.
pub(super) fn check_common(conf: &Json) -> Result<(), Failure> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Common {
        #[serde(rename = "capabilities")]
        _capabilities: BTreeMap<String, bool>,
        #[serde(rename = "dns")]
        _dns: Dns,
        #[serde(rename = "ipam")]
        _ipam: Ipam,
        #[serde(rename = "prevResult")]
        _previous: PreviousResult,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Ipam {
        #[serde(rename = "type")]
        _type: String,
    }
    /// Only that it is an object; its parts depend on its version.
    #[derive(Deserialize, Default)]
    struct PreviousResult {}
    decode::<Common>(conf).map(drop)
}

/// Reads what can be read of a plugin's options, for DEL: a configuration that ADD refused, or that somebody edited since,
/// must not keep what was made from being taken down. A key that does not fit counts as not given.
pub fn decode_readable<T: DeserializeOwned + Default>(conf: &Json) -> T {
    if let Ok(whole) = T::deserialize(conf) {
        return whole;
    }
    let Json::Object(entries) = conf else { return T::default() };
    let fits = |entry: &&(String, Json)| T::deserialize(&Json::Object(vec![(*entry).clone()])).is_ok();
    T::deserialize(&Json::Object(entries.iter().filter(fits).cloned().collect())).unwrap_or_default()
}

/// Reads a plugin's options out of the configuration, naming the key that does not fit.
pub fn decode<T: DeserializeOwned>(conf: &Json) -> Result<T, Failure> {
    T::deserialize(conf).map_err(|error| {
        let Json::Object(entries) = conf else { return Failure::config(error.to_string()) };
        let culprit = entries.iter().find_map(|entry| {
            let alone = Json::Object(vec![entry.clone()]);
            T::deserialize(&alone).err().map(|e| format!("{:?}: {e}", entry.0))
        });
        Failure::config(culprit.unwrap_or_else(|| error.to_string()))
    })
}
