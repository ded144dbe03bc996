//! What `keelson pods` shows: one row a pod, with the reason in words for whatever does not run.

use serde::{Deserialize, Serialize};

use crate::manifest::ManifestError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRow {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// "api" or "file".
    pub source: String,
    pub phase: String,
    pub ready_containers: u32,
    pub containers: u32,
    pub ready: bool,
    pub restarts: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// RFC 3339; the age is counted from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// Empty for a pod that runs as asked. Else what it waits for or what failed, naming the container.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The phase of a manifest that is no pod.
pub const REFUSED: &str = "Refused";

/// A manifest that was refused, as a row among the pods: named by its file, with all that is wrong as the reason.
pub fn refused_manifest(error: &ManifestError) -> PodRow {
    let file = error.file.as_str();
    PodRow {
        uid: format!("file:{file}"),
        namespace: String::new(),
        name: file.rsplit('/').next().unwrap_or(file).to_owned(),
        source: "file".into(),
        phase: REFUSED.into(),
        ready_containers: 0,
        containers: 0,
        ready: false,
        restarts: 0,
        ip: None,
        created_at: None,
        reason: error.to_string(),
    }
}
