//! Which sources a volume names.

use k8s_openapi::api::core::v1::Volume;
use serde_json::Value;

/// The volume's sources, as a manifest calls them. A volume should have one.
pub fn sources(volume: &Volume) -> Vec<String> {
    let fields = serde_json::to_vec(volume).and_then(|json| serde_json::from_slice(&json));
    match fields {
        Ok(Value::Object(fields)) => fields.into_iter().map(|(key, _)| key).filter(|k| k != "name").collect(),
        _ => Vec::new(),
    }
}
